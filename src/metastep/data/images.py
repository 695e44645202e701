"""What every loader returns: pictures by class, as one rectangular array of bytes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
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
