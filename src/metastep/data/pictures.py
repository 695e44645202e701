"""What every loader returns, as bytes: pictures by class for episodes, or one list of labelled pictures."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Pixels = NDArray[np.uint8]


class ImageSet(NamedTuple):
    """Pictures by class, as bytes: 0..255, to be divided by 255 wherever floats are needed."""

    images: Tensor
    """uint8 (classes, per_class, channels, height, width), contiguous; drawings have ink 255 on paper 0."""
    names: tuple[str, ...]
    """One per class."""
    groups: tuple[str, ...]
    """What each class belongs to: its script, its alphabet; its own name where there is nothing above it."""
    counts: tuple[int, ...] = ()
    """Pictures of each class, only where classes differ: the rest of a row repeats them."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many pictures each class has, whether they differ or not."""
        return self.counts or (self.images.shape[1],) * len(self.names)


def stack_classes(rows: Sequence[Sequence[Pixels]]) -> tuple[Pixels, tuple[int, ...]]:
    """The `images` and `counts` of an ImageSet: a smaller class is filled up by repeating it in order."""
    counts = tuple(map(len, rows))
    images = np.empty((len(rows), max(counts), *rows[0][0].shape), np.uint8)
    for row, pictures, count in zip(images, rows, counts, strict=True):
        for i, picture in enumerate(pictures):
            row[i] = picture
        for i in range(count, len(row)):
            row[i] = row[i % count]
    return images, counts if len(set(counts)) > 1 else ()


class LabelledSet(NamedTuple):
    """Pictures with their labels, for ordinary training and testing."""

    images: Tensor
    """uint8 (pictures, channels, height, width), contiguous; drawings have ink 255 on paper 0."""
    labels: Tensor
    """int64 (pictures,), from 0 to classes - 1."""
    names: tuple[str, ...]
    """One per class."""

    @property
    def sizes(self) -> list[int]:
        """Pictures of each class."""
        sizes: list[int] = self.labels.bincount(minlength=len(self.names)).tolist()
        return sizes

    def to(self, device: torch.device | str) -> "LabelledSet":
        """The same, resident on a device."""
        return LabelledSet(self.images.to(device), self.labels.to(device), self.names)

    def at(self, indices: Sequence[int]) -> "LabelledSet":
        """These of its pictures, in this order."""
        chosen = torch.tensor(indices, dtype=torch.int64)
        return LabelledSet(self.images[chosen], self.labels[chosen], self.names)


class LabelledSplits(NamedTuple):
    """A data set to learn from, to make choices with, and to report on: the same classes, different pictures."""

    train: LabelledSet
    val: LabelledSet
    test: LabelledSet
    validation: str
    """How `val` was chosen, for reports."""


def labelled(images: Pixels, labels: NDArray[np.generic], names: Iterable[str]) -> LabelledSet:
    """Arrays as a LabelledSet."""
    images = np.require(images, requirements=("C", "W"))  # as torch wants them
    return LabelledSet(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)), tuple(map(str, names)))
