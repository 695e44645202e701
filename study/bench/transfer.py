"""What every implementation of meta-transfer works with: configuration, nets, and pictures on the device.

Pictures are noise and the source has never been trained: both cost the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from metastep.data.draw import Batch, Batches
from metastep.data.pictures import Labelled, Pictures
from metastep.train import config as schema
from metastep.train.config import Scratch, WhatAndWhere
from metastep.train.transfer.building import export, layers_of, network, seeded, source_net, target_net
from metastep.train.transfer.features import Tapped
from metastep.train.transfer.losses import Guidance, guidance
from study.bench.cases import TRANSFERS, Case, Transfer
from study.bench.workload import PRECISIONS

RATE = 0.01  # small enough for noise; a rate costs the same whatever it is
EPOCH = 4  # batches of one
SOURCE_CLASSES = 200


def config_of(case: Case, device: torch.device) -> schema.Transfer:
    config = TRANSFERS[case.setting].config
    assert isinstance(config.method, WhatAndWhere)
    method = WhatAndWhere(window=case.window, beta=config.method.beta)
    return replace(
        config,
        method=Scratch() if case.method == "scratch" else method,
        steps=case.steps,
        inner=replace(config.inner, lr=RATE),
        precision=PRECISIONS[case.precision],  # type: ignore[arg-type]  # bf16 is not planned
        device="cuda" if device.type == "cuda" else "cpu",
        compile=case.method != "scratch",  # as by `--compile`
        threads=torch.get_num_threads(),
    )


def load(case: Case, device: torch.device) -> Labelled:
    return pictures(TRANSFERS[case.setting], device)


@cache
def pictures(setting: Transfer, device: torch.device) -> Labelled:
    """Whole batches only: the last one of an epoch would be recorded for itself"""
    data, generator = setting.config.data, torch.Generator().manual_seed(0)
    number = EPOCH * setting.config.batch
    images = torch.randint(256, (number, 3, data.size, data.size), dtype=torch.uint8, generator=generator)
    labels = torch.randint(setting.classes, (number,), generator=generator)
    noise = Pictures(images, labels, tuple(map(str, range(setting.classes)))).to(device)
    return Labelled(noise, noise, noise, "noise")


@contextmanager
def untrained_source(config: schema.Transfer, data: Pictures) -> Iterator[Path]:
    """Weights in a file, which is where training wants them"""
    classes = config.source.classes or SOURCE_CLASSES
    with TemporaryDirectory() as folder:
        export(Path(folder), network(config.source.net, data, classes, config.seed).state_dict(), classes)
        yield next(Path(folder).iterdir())


class Nets(NamedTuple):
    target: Tapped
    guidance: Guidance | None  # for scratch, none


def nets(config: schema.Transfer, data: Pictures, x: torch.Tensor) -> Nets:
    """For nets that training did not build; `x`, of the batches, gives the sizes"""
    with untrained_source(config, data) as weights:
        target = Tapped(target_net(config, data, None).to(x.device, x.dtype).train(), ())
        if not isinstance(config.method, WhatAndWhere):
            return Nets(target, None)
        source = source_net(config, data, weights).to(x.device, x.dtype).eval()
    tapped = Tapped(source, layers_of(source, config.source.net, config.source.layers, "source"))
    target = target._replace(layers=layers_of(target.module, config.net.name, config.net.layers, "target"))
    with seeded(config.seed):
        return Nets(target, guidance(tapped, target, config.method.pairs, x))


def endless(batches: Batches, dtype: torch.dtype, layout: torch.memory_format) -> Iterator[Batch]:
    """Epoch after epoch, as training draws them"""
    for k in count():
        x, y = batches.batch(*divmod(k, len(batches)))
        yield x.to(dtype, memory_format=layout), y
