"""How good a target net is: pictures that it names rightly, by its running statistics."""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from metastep.core.modules import evaluation_mode
from metastep.core.trees import Tree, map_tree
from metastep.data.batches import Batches
from metastep.data.progress import Progress, silent
from metastep.train.config import Transfer
from metastep.train.errors import CheckpointError
from metastep.train.fields import Device
from metastep.train.run import Run, Which
from metastep.train.transfer.building import choose_device, network, trusted
from metastep.train.transfer.features import tap
from metastep.train.transfer.reading import read_data, with_data_moved
from metastep.train.validated import to_plain

BATCH = 256


class Judged(NamedTuple):
    """Of a part of the data, on the device"""

    loss: Tensor
    right: Tensor  # of each class
    pictures: Tensor

    @property
    def accuracy(self) -> Tensor:
        return self.right.sum() / self.pictures.sum()


@dataclass(frozen=True)
class ClassScore:
    name: str
    accuracy: float
    """In percent"""
    pictures: int


@dataclass(frozen=True)
class Evaluation:
    dataset: str
    split: str
    checkpoint: str
    epoch: int
    """After how many epochs the checkpoint was written"""
    accuracy: float
    """In percent"""
    pictures: int
    classes: tuple[ClassScore, ...]
    seconds: float


@torch.no_grad()
def judge(net: nn.Module, params: Tree, buffers: Tree, batches: Batches, dtype: torch.dtype = torch.float32) -> Judged:
    """Nothing here waits for the device"""
    number, device = len(batches.data.names), batches.data.labels.device
    loss = torch.zeros((), dtype=torch.float64, device=device)
    right, count = (torch.zeros(number, dtype=torch.float64, device=device) for _ in range(2))
    with evaluation_mode(net):
        for x, y in batches.epoch(0):
            logits = tap(net, params, buffers, x.to(dtype), ())[0]
            loss += cross_entropy(logits, y, reduction="sum")
            right.index_add_(0, y, (logits.argmax(1) == y).double())
            count.index_add_(0, y, torch.ones_like(y, dtype=torch.float64))
    return Judged(loss / count.sum(), right, count)


def evaluate(
    folder: Path,
    split: Literal["test", "val", "train"] = "test",
    checkpoint: Which = "best",
    data: Path | None = None,
    target_net: str | None = None,
    progress: Progress = silent,
    device: Device = "auto",
    target_data: str | None = None,
) -> Evaluation:
    """A run's target net on a part of its own data; on `device`, wherever it was trained

    target_data: where the user's own folder of pictures is, if it was moved.
    """
    run = Run.open(folder)
    kept = with_data_moved(run.config(Transfer), data, None, target_data)
    config = replace(trusted(kept, target=target_net), device=device)
    place, dtype = choose_device(config)
    splits = read_data(config, data, progress)
    batches = Batches(getattr(splits, split).to(place), BATCH, config.data.augment, training=False)
    taken = run.taken(checkpoint)
    saved = run.load(taken)
    try:
        state, epoch = saved["state"], saved["trained"]["epoch"]
        params, buffers = state["target"]["params"]["target"], state["buffers"]
    except (KeyError, TypeError) as error:
        where = str(run.checkpoint(taken))
        raise CheckpointError(f"{where!r}: is no checkpoint of transfer training ({error}).") from error

    began = time.perf_counter()
    net = network(config.net.name, splits.train, len(splits.train.names), config.seed).to(place, dtype)
    params, buffers = map_tree(lambda x: x.to(place), (params, buffers))
    judged = judge(net, params, buffers, batches, dtype)
    return Evaluation(
        config.data.name,
        split,
        taken,
        epoch=epoch,
        accuracy=100 * float(judged.accuracy),
        pictures=int(judged.pictures.sum()),
        classes=tuple(_scores(splits.train.names, judged)),
        seconds=time.perf_counter() - began,
    )


def _scores(names: tuple[str, ...], judged: Judged) -> list[ClassScore]:
    rows = zip(names, judged.right.tolist(), judged.pictures.tolist(), strict=True)
    return [ClassScore(name, 100 * right / count if count else 0.0, int(count)) for name, right, count in rows]


def to_json(evaluation: Evaluation) -> str:
    return json.dumps(to_plain(evaluation), indent=1)
