"""Stripes with labels, two small nets, and runs short enough for a test."""

import os
import signal
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from metastep.core.optimizers import SGD
from metastep.data.draw import Batches
from metastep.data.pictures import Labelled, Pictures
from metastep.step.capture import Captured
from metastep.step.compiler.compiling import Compiled, as_traced
from metastep.step.compiler.program_cache import Kin
from metastep.train.config import Outer, Source, Target, TargetData, Transfer, TransferMethod, WhatAndWhere
from metastep.train.run import Run

SIZE, CLASSES = 8, 3


class Teacher(nn.Module):
    taps = ("first", "second")

    def __init__(self, ways: int, channels: int, size: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.head = nn.Linear(6, ways)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x)).mean((-2, -1)))


class Pupil(nn.Module):
    """Of another shape, without layers of its own choice"""

    def __init__(self, ways: int, channels: int, size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU())
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(5, ways)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(self.body(x).amax((-2, -1))))


def forgetful(ways: int, channels: int, size: int) -> Pupil:
    return Pupil(ways, channels, size, dropout=0.3)


def shrinking(ways: int, channels: int, size: int) -> nn.Module:
    """Its maps are a single pixel where they are normalised"""
    body = nn.Sequential(nn.Conv2d(channels, 5, size), nn.BatchNorm2d(5))
    return nn.Sequential(OrderedDict(body=body, flat=nn.Flatten(), head=nn.Linear(5, ways)))


TEACHER, PUPIL = "tests.train.transfer.train_helpers:Teacher", "tests.train.transfer.train_helpers:Pupil"
NAMED = {"source.net": TEACHER, "net.name": PUPIL}  # again, for a run that goes on

TINY = Transfer(
    data=TargetData("stripes", size=SIZE, augment="crop"),
    batch=8,
    source=Source(TEACHER, dataset="stripes", epochs=2),
    net=Target(PUPIL, layers=("body",)),
    method=WhatAndWhere(window=2),
    steps=2,
    inner=SGD(0.05, 0.9, weight_decay=1e-4),
    outer=Outer(lr=1e-2, weight_decay=1e-4),
    epochs=3,
    checkpoint_seconds=0,
    threads=1,
    device="cpu",
)


def loading(name: str, root: Path | None = None, size: int | None = None, progress: object = None) -> Any:
    """What stands for `load`"""
    del root, progress
    return SimpleNamespace(labelled=partial(stripes, name, size))


def stripes(name: str = "stripes", size: int | None = None, seed: int = 0, per_class: int | None = None) -> Labelled:
    """Classes differ in the direction of their stripes; 7 of each to learn from, so that the last batch is smaller"""
    generator = torch.Generator().manual_seed(len(name) + seed)
    parts = [_part(generator, number, size or SIZE) for number in (per_class or 7, 4, 6)]
    return Labelled(*parts, "4 of each class")


def _part(generator: torch.Generator, each: int, size: int) -> Pictures:
    x, y = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    labels = torch.arange(CLASSES).repeat(each)
    angle = labels[:, None, None] * (torch.pi / CLASSES)
    phase = 6 * torch.rand(len(labels), 1, 1, generator=generator)
    wave = torch.sin((x * torch.cos(angle) + y * torch.sin(angle)) * 1.5 + phase)
    noise = torch.randn(len(labels), size, size, generator=generator)
    images = (127 + 80 * wave + 30 * noise).clamp(0, 255).to(torch.uint8)[:, None]
    return Pictures(images, labels, tuple(f"stripe {i}" for i in range(CLASSES)))


def tiny(method: TransferMethod | None = None, **changes: Any) -> Transfer:
    return replace(TINY, **({"method": method} if method else {}), **changes)


def with_source(folder: Path, **changes: Any) -> Transfer:
    """TINY with a source that is there already"""
    return replace(TINY, source=Source(TEACHER, weights=str(folder)), **changes)


def capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps on memory that is written over, as on a GPU"""

    def again(run: Callable[[], None]) -> Callable[[], None]:
        run()  # as a recorder warms up
        return run

    def captured(
        step: Any, device: torch.device, draws_noise: bool = False, compile: bool = False, kin: Kin | None = None
    ) -> Captured:
        return Captured(Compiled(step, as_traced, kin) if compile else step, again)

    monkeypatch.setattr("metastep.train.transfer.building.unit", captured)


def checkpoint(folder: Path, which: Literal["last", "best"] = "last") -> dict[str, Any]:
    saved = Run(folder).load(which)
    saved["trained"].pop("seconds")
    return saved


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


def stop_at(monkeypatch: pytest.MonkeyPatch, iteration: int, error: BaseException | None = None, seed: int = 0) -> None:
    """As if Ctrl-C were pressed, or something broke, while the run with that seed draws this batch, counted from 0"""
    draw = Batches.batch

    def batch(self: Batches, epoch: int, i: int) -> Any:
        if self.training and (epoch * len(self) + i, self.seed) == (iteration, seed):
            monkeypatch.setattr(Batches, "batch", draw)
            if error:
                raise error
            os.kill(os.getpid(), signal.SIGINT)
        return draw(self, epoch, i)

    monkeypatch.setattr(Batches, "batch", batch)
