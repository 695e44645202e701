"""A run on disk that was not trained, and drawings of bars."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from metastep.train.config import FewShot
from metastep.train.fewshot.learner import Learner
from metastep.train.record import Metrics
from metastep.train.run import Run, Trained
from tests.train.fewshot.helpers import TINY

SIZE = 16


def fresh(config: FewShot = TINY) -> Learner:
    """A learner with parameters that are worth something: the head does not start from zero."""
    learner = Learner.fresh(config)
    with torch.no_grad():
        learner.net.head.weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(1))  # type: ignore[union-attr]
    return learner


def write_run(folder: Path, config: FewShot = TINY, learner: Learner | None = None, best: bool = True) -> Path:
    """What training leaves: configuration, metrics, checkpoints; without validation, none is known as the best."""
    run = Run.create(folder, config)
    with Metrics(run.metrics_path) as metrics:
        for step in range(1, 9):
            metrics.write(step, {"kind": "train", "loss": 1 / step, "accuracy": step / 10, "seconds": step * 0.5})
        row = {"validation_loss": 0.5, "validation_accuracy": 0.75, "validation_interval": 0.05}
        if best:
            metrics.write(8, {"kind": "validation", **row, "seconds": 4.0})
    tree = (learner or fresh(config)).tree() | {"trained": asdict(Trained(config.iterations))}
    run.save(tree, tree if best else None)
    return folder


def drawings() -> FewShot:
    """The configuration of a learner of glyphs, wide enough to tell bars apart without training."""
    data, net = replace(TINY.data, name="glyphs"), TINY.net.changed(filters=32)
    return replace(TINY, data=data, net=net, steps=16)


def bar(kind: str, seed: int = 0) -> NDArray[np.uint8]:
    """Ink 255 on paper 0: a bar that lies, stands, or is a square, somewhere."""
    pixels = np.zeros((SIZE, SIZE), np.uint8)
    top, left = np.random.default_rng(seed).integers(3, 5, 2)
    height, width = {"lying": (2, 9), "standing": (9, 2), "square": (7, 7)}[kind]
    pixels[top : top + height, left : left + width] = 255
    return pixels


def write_bars(folder: Path, counts: dict[str, int], first: int = 0, dark: bool = False) -> Path:
    for kind, count in counts.items():
        (folder / kind).mkdir(parents=True)
        for i in range(count):
            pixels = bar(kind, first + i)
            Image.fromarray(255 - pixels if dark else pixels).save(folder / kind / f"{i}.png")
    return folder
