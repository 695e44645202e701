"""Batches of labelled pictures that live on the device as bytes.

Batch i of an epoch is a pure function of (seed, epoch, i): the same on a CPU and a GPU, and after a resume.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from metastep.core.random import WORD, number, stream
from metastep.data.augment import augmented, plain, random_numbers, scaling
from metastep.data.augmentations import known_augmentation
from metastep.data.pictures import Pictures
from metastep.errors import MetastepError

Batch = tuple[Tensor, Tensor]


class Epoch(NamedTuple):
    """What is drawn for one pass through the data."""

    number: int
    order: Tensor  # (pictures,)
    numbers: Tensor  # (pictures, numbers of each)


class Batches:
    """Shuffled and augmented for training; in order, and only cropped in the middle, for testing."""

    def __init__(
        self, data: Pictures, size: int, augmentation: str = "none", seed: int = 0, *, training: bool = True
    ) -> None:
        """`data` where it is to stay; the last batch of an epoch has what is left."""
        _require(data, size, seed)
        self.data, self.size, self.seed, self.training = data, size, seed, training
        self.augmentation = known_augmentation(augmentation)
        self.scaling = scaling(data.images.shape[1], data.images.device)
        self._drawn: Epoch | None = None

    def __len__(self) -> int:
        """Batches of an epoch."""
        return -(-len(self.data.labels) // self.size)

    def batch(self, epoch: int, i: int) -> Batch:
        """x float32 (pictures, channels, side, side), normalised, and y int64 (pictures,)."""
        if not 0 <= i < len(self):
            raise MetastepError(f"batch {i}: an epoch has {len(self)}, counted from 0.")
        here = slice(i * self.size, (i + 1) * self.size)
        if not self.training:
            return plain(self.data.images[here], self.augmentation, self.scaling), self.data.labels[here]
        drawn = self._epoch(epoch)
        rows = drawn.order[here]
        images, numbers = self.data.images.index_select(0, rows), drawn.numbers.index_select(0, rows)
        return augmented(images, numbers, self.augmentation, self.scaling), self.data.labels.index_select(0, rows)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """All batches of an epoch."""
        return (self.batch(epoch, i) for i in range(len(self)))

    def _epoch(self, epoch: int) -> Epoch:
        """Drawn once for all batches of an epoch: a batch then costs a few kernels, instead of a hundred."""
        if self._drawn is None or self._drawn.number != epoch:
            self._drawn = draw_epoch(self.seed, epoch, len(self.data.labels), self.data.labels.device)
        return self._drawn


def draw_epoch(seed: int, epoch: int, pictures: int, device: torch.device | str = "cpu") -> Epoch:
    """A permutation, by sorting random keys that never tie, and the numbers of each picture."""
    if not 0 <= epoch <= WORD:
        raise MetastepError(f"epoch = {epoch}: epochs are counted from 0 to 2**32 − 1.")
    positions = torch.arange(pictures, device=device)
    keys: Tensor = number(stream(seed & WORD, seed >> 32, epoch, 0), positions)
    return Epoch(epoch, keys.argsort(), random_numbers(seed, epoch, positions))


def _require(data: Pictures, size: int, seed: int) -> None:
    images, labels = data.images, data.labels
    if images.dim() != 4 or images.dtype != torch.uint8 or images.shape[2] != images.shape[3]:
        raise MetastepError(
            f"images are {images.dtype} {tuple(images.shape)}: batches need bytes of square pictures, "
            "torch.uint8 (pictures, channels, side, side)."
        )
    if labels.shape != images.shape[:1] or labels.dtype != torch.int64 or labels.device != images.device:
        raise MetastepError(
            f"labels are {labels.dtype} {tuple(labels.shape)} on {labels.device}: batches need torch.int64 "
            f"({len(images)},) on {images.device}, where the images are."
        )
    if size < 1 or not len(images):
        raise MetastepError(f"batch size {size} of {len(images)} pictures: there must be at least one of each.")
    if not 0 <= seed < 2**64:
        raise MetastepError(f"seed = {seed} must be from 0 to 2**64 − 1.")
