"""How good a target net is: pictures that it names rightly, by its running statistics."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from metastep.core.modules import evaluation_mode
from metastep.core.trees import Tree, map_tree
from metastep.data.draw import Batches
from metastep.data.errors import Progress, silent
from metastep.data.pictures import Labelled
from metastep.train.config import Transfer
from metastep.train.evaluate import ClassScore, Judged, OnPictures, digest, mean
from metastep.train.io import CheckpointError
from metastep.train.remembered import moved_to, trusted
from metastep.train.run import Run, Which, trained_of
from metastep.train.schema import Device
from metastep.train.transfer.building import choose_device, network, read_data
from metastep.train.transfer.features import tap

BATCH = 256
Part = Literal["test", "val", "train"]


class Taught(NamedTuple):
    """A run's target net at a checkpoint, and the pictures that it learned and is judged by"""

    config: Transfer
    splits: Labelled
    checkpoint: Which
    epoch: int
    net: nn.Module
    params: Tree
    buffers: Tree
    dtype: torch.dtype

    def logits(self, part: Part) -> Tensor:
        return logits_of(self.net, self.params, self.buffers, self.batches(part), self.dtype)

    def batches(self, part: Part) -> Batches:
        pictures = getattr(self.splits, part).to(next(iter(self.params.values())).device)
        return Batches(pictures, BATCH, self.config.data.augment, training=False)


@torch.no_grad()
def logits_of(
    net: nn.Module, params: Tree, buffers: Tree, batches: Batches, dtype: torch.dtype = torch.float32
) -> Tensor:
    """(pictures, classes); nothing here waits for the device"""
    with evaluation_mode(net):
        return torch.cat([tap(net, params, buffers, x.to(dtype), ())[0] for x, _ in batches.epoch(0)])


def judge(net: nn.Module, params: Tree, buffers: Tree, batches: Batches, dtype: torch.dtype = torch.float32) -> Judged:
    logits, labels = logits_of(net, params, buffers, batches, dtype), batches.data.labels
    loss = cross_entropy(logits.double(), labels, reduction="none")
    right = (logits.argmax(1) == labels) & loss.isfinite()
    return Judged(loss[:, None], right[:, None].double())


def load(
    folder: Path,
    checkpoint: Which = "best",
    data: Path | None = None,
    target_net: str | None = None,
    progress: Progress = silent,
    device: Device = "auto",
    target_data: str | None = None,
) -> Taught:
    """A run's target net, on `device`, wherever it was trained

    target_data: where the user's own folder of pictures is, if it was moved.
    """
    run = Run.open(folder)
    config = run.config(Transfer)
    config = replace(config, data=moved_to(config.data, data, name=target_data), device=device)
    config = trusted(config, {"net.name": target_net}, only="net.name")
    place, dtype = choose_device(config)
    splits = read_data(config, data, progress)
    taken = run.taken(checkpoint)
    saved = run.load(taken)
    try:
        state, epoch = saved["state"], trained_of(saved, run.checkpoint(taken)).length
        params, buffers = state["target"]["params"]["target"], state["buffers"]
    except (KeyError, TypeError) as error:
        where = str(run.checkpoint(taken))
        raise CheckpointError(f"{where!r}: is no checkpoint of transfer training ({error}).") from error
    net = network(config.net.name, splits.train, len(splits.train.names), config.seed).to(place, dtype)
    params, buffers = map_tree(lambda x: x.to(place), (params, buffers))
    return Taught(config, splits, taken, epoch, net, params, buffers, dtype)


def evaluate(taught: Taught, split: Part = "test") -> OnPictures:
    """On a part of the pictures of its run"""
    began = time.perf_counter()
    batches = taught.batches(split)
    judged = judge(taught.net, taught.params, taught.buffers, batches, taught.dtype)
    right = 100 * judged.accuracy[:, -1].cpu()
    return OnPictures(
        **judged.fields(taught.config.data.serving(split), began),
        split=split,
        checkpoint=taught.checkpoint,
        weights=digest(taught.params),
        epoch=taught.epoch,
        classes=tuple(_by_class(taught.splits.train.names, right, batches.data.labels.cpu())),
    )


def _by_class(names: tuple[str, ...], right: Tensor, labels: Tensor) -> Iterator[ClassScore]:
    for label, name in enumerate(names):
        of_class = right[labels == label]
        score = mean(of_class) if len(of_class) else (0.0, 0.0)
        yield ClassScore(name, *score, len(of_class))
