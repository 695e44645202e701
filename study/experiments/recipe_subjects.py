"""What recipes are compared on: pictures in episodes, and waves."""

import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import metastep as ms
from metastep.data.draw import draw
from metastep.data.episodes import Episodes
from metastep.data.registry import load
from metastep.nets.conv4 import Conv4

SPLITS = ("train", "val", "test")
JUDGING_SEED = {"val": 2**40, "test": 2**41}
OWN, OWN_CLASSES = "own-folder", 200  # a folder of pictures as a user has it
AT_ONCE = 10  # episodes that are judged together
KEPT = 50  # pictures of each class of a large data set, so that all fits in one small file


@dataclass(frozen=True)
class Pictures:
    """Describe 1-shot episodes of a data set, for a Conv4."""

    data: str
    ways: int = 5
    filters: int = 16
    size: int | None = None
    tasks: int = 8
    queries: int = 5
    reptile_shots: int = 10  # Reptile's published recipe: more shots in training than in the test
    share: float = 1.0  # of the seconds that a run is given
    score: str = "accuracy"
    folder: Path | None = None

    def net(self, seed: int) -> nn.Module:
        channels, side = self._images("train").shape[2:4]
        torch.manual_seed(seed)
        return Conv4(ways=self.ways, channels=channels, filters=self.filters, size=side)

    def problem(self, net: nn.Module) -> ms.Problem:
        return ms.few_shot(net, cross_entropy, {"accuracy": ms.accuracy})

    def drawn(self, seed: int, k: int, reptile: bool) -> Any:
        shots, queries, tasks = (self.reptile_shots, 1, 5) if reptile else (1, self.queries, self.tasks)
        return draw(self._images("train"), Episodes(self.ways, shots, queries), seed, k, tasks)

    def judged(self, gradient: ms.MetaGradient, net: nn.Module, split: str, episodes: int) -> Tensor:
        """Return the accuracy of each episode, in per cent."""
        kind, images = Episodes(self.ways, 1, 15 if self.ways == 5 else 5), self._images(split)
        batches = [draw(images, kind, JUDGING_SEED[split], k, AT_ONCE) for k in range(episodes // AT_ONCE)]
        found = [gradient.judge(net, batch).metrics["accuracy"] for batch in batches]
        return 100 * torch.cat(found).double()

    def _images(self, split: str) -> Tensor:
        return pictures(self.folder, self.data, self.size)[split]


@dataclass(frozen=True)
class Waves:
    """Describe the regression of sine waves from ten points, for an MLP."""

    share: float = 1 / 2
    score: str = "squared error"

    def net(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))

    def problem(self, net: nn.Module) -> ms.Problem:
        return ms.few_shot(net, mse_loss)

    def drawn(self, seed: int, k: int, reptile: bool) -> ms.Task:
        return waves(torch.Generator().manual_seed(10**6 * (seed + 1) + k), 16)

    def judged(self, gradient: ms.MetaGradient, net: nn.Module, split: str, episodes: int) -> Tensor:
        """Return the squared error of each wave."""
        found = gradient.judge(net, waves(torch.Generator().manual_seed(JUDGING_SEED[split]), episodes))
        return found.metrics["loss"].double()


def waves(generator: torch.Generator, tasks: int) -> ms.Task:
    """Return points on waves of amplitude 0.1 to 5 and any phase: ten to adapt to, twenty to be judged by."""
    amplitude, phase = torch.rand(2, tasks, 1, 1, generator=generator)
    x = 10 * torch.rand(tasks, 30, 1, generator=generator) - 5
    y = (0.1 + 4.9 * amplitude) * torch.sin(x + math.pi * phase)
    return ms.Task((x[:, :10], y[:, :10]), (x[:, 10:], y[:, 10:]))


Subject = Pictures | Waves
SUBJECTS: dict[str, Subject] = {
    "omniglot-5w": Pictures("omniglot", share=1.5),
    "omniglot-20w": Pictures("omniglot", ways=20, tasks=2),
    "sinusoid": Waves(),
    "folder-5w": Pictures(OWN, size=28),
    "cifar_fs-5w": Pictures("cifar_fs", share=1.5),
    "mini_imagenet-5w": Pictures("mini_imagenet", size=42, share=1.5),
}


def subject(name: str, folder: Path | None) -> Subject:
    """Return a subject that reads pictures from a folder."""
    found = SUBJECTS[name]
    return replace(found, folder=folder) if isinstance(found, Pictures) else found


def file_of(folder: Path, data: str) -> Path:
    """Return the file that `export` writes for a data set."""
    return folder / f"recipes-{data}.npz"


@cache
def pictures(folder: Path | None, data: str, size: int | None) -> dict[str, Tensor]:
    """Return the classes of each split, by `export`'s file if there is one, else by the data set itself."""
    if folder is not None and file_of(folder, data).exists():
        with np.load(file_of(folder, data)) as arrays:
            return {split: torch.from_numpy(arrays[split]) for split in SPLITS}
    if data == OWN:
        with TemporaryDirectory() as own:
            return of_each_split(f"folder:{write_folder(Path(own))}", None, size)
    return of_each_split(data, folder, size)


def of_each_split(data: str, folder: Path | None, size: int | None) -> dict[str, Tensor]:
    found = load(data, folder, size=size)
    rows = {split: found.classes(split).rows()[0] for split in SPLITS}
    return {split: images[:, :KEPT].contiguous() for split, images in rows.items()}


def write_folder(folder: Path) -> Path:
    """Write characters of `glyphs` as the files that a user has: one sub-folder per class, twenty drawings each."""
    images = load("glyphs").classes("all").rows()[0]
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:OWN_CLASSES]
    for k in chosen.tolist():
        (folder / f"{k}").mkdir()
        for i, image in enumerate(images[k, :, 0].numpy()):
            Image.fromarray(255 - image).save(folder / f"{k}" / f"{i}.png")
    return folder


def export(folder: Path | None, to: Path) -> None:
    """Write one small file for each data set, for a machine that has none of them."""
    to.mkdir(parents=True, exist_ok=True)
    for kind in SUBJECTS.values():
        if isinstance(kind, Pictures) and not file_of(to, kind.data).exists():
            arrays = {split: images.numpy() for split, images in pictures(folder, kind.data, kind.size).items()}
            np.savez_compressed(file_of(to, kind.data), **arrays)  # type: ignore[arg-type]
            print(file_of(to, kind.data), flush=True)
