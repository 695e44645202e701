"""Episodes of a run: images on the device, and which of them task t of batch k is made of."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from metastep.core.windows import Task
from metastep.data.draw import draw, real_counts
from metastep.data.episodes import Episodes
from metastep.data.folder import fingerprint_of, placed, require_remembered
from metastep.data.pictures import Pictures
from metastep.data.progress import Progress, silent
from metastep.data.registry import is_own, load
from metastep.errors import MetastepError
from metastep.train.config import Data, FewShot

AGAIN = "metastep resume RUN data=folder:PATH, or once, metastep evaluate RUN --dataset folder:PATH"
VALIDATION_SEED = 2020  # its own, so that runs with different seeds are judged by the same episodes


@dataclass(frozen=True)
class Sampler:
    """`sampler(k, tasks, first)`: tasks first, …, first + tasks − 1 of batch k, a number or a tensor on the device"""

    images: Tensor
    counts: Tensor | None
    episodes: Episodes
    seed: int
    dtype: torch.dtype

    @classmethod
    def of(
        cls, images: Pictures, episodes: Episodes, seed: int, device: torch.device | str, dtype: torch.dtype
    ) -> "Sampler":
        rows, sizes = images.rows()
        counts = real_counts(sizes, episodes, device, images.names)
        sampler = cls(rows.to(device), counts, episodes, seed, dtype)
        sampler(0, 1)  # says at once whether there are enough classes and images
        return sampler

    def __call__(self, k: int | Tensor, tasks: int, first: int = 0) -> Task:
        support, query = draw(self.images, self.episodes, self.seed, k, tasks, first, self.counts)
        return Task((support[0].to(self.dtype), support[1]), (query[0].to(self.dtype), query[1]))


def read_images(config: FewShot, root: Path | None, progress: Progress = silent) -> tuple[Pictures, Pictures | None]:
    """The classes to train on and, where they are wanted, those to validate with"""
    train = read_split(config.data, root, config.data.split, progress)
    return train, load(config.data.name, root, progress=progress).classes("val") if config.validation.every else None


def read_split(data: Data, root: Path | None, split: str, progress: Progress = silent) -> Pictures:
    """Of a folder that is remembered, only the pictures that it had"""
    require_remembered(data.name, data.fingerprint, root, AGAIN)
    return load(data.name, root, progress=progress).classes(split)


def remembered(data: Data, root: Path | None) -> Data:
    """A user's own folder as it is now, to be found again"""
    if not is_own(data.name, root):
        return data
    return replace(data, name=placed(data.name, root), fingerprint=fingerprint_of(data.name, root))


def fitted(config: FewShot, images: Pictures) -> FewShot:
    """The net takes pictures as the data has them"""
    channels, height, width = images.images.shape[1:]
    if height != width:
        raise MetastepError(f"pictures of {height}×{width}: nets here take square ones. Resize them.")
    return replace(config, net=replace(config.net, channels=channels, size=height))
