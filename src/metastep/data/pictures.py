"""Keep pictures and their classes as bytes: a list with labels, or one row for each class.

This module loads torch when pictures are first made, so that data sets can be listed without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastep.data.errors import printable, problem
from metastep.data.splits import complement, drawn_per_class, shuffled_classes, sizes_from_fractions
from metastep.errors import how_many

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Pixels = NDArray[np.uint8]
FRACTIONS = (0.6, 0.2, 0.2)  # of each class for training, validation and testing, where nothing else is published


class Pictures(NamedTuple):
    """Hold pictures with their classes, in any order.

    Args:
        images: uint8 (pictures, channels, height, width), contiguous. Drawings have ink 255 on paper 0.
        labels: int64 (pictures,), from 0 to classes - 1.
        names: One for each class.
        groups: What each class belongs to, such as its alphabet; empty if there is nothing above the classes.

    Example:
        >>> import numpy as np
        >>> import metastep as ms
        >>> arrays = np.zeros((6, 1, 8, 8), np.uint8), np.arange(6) // 3
        >>> ms.data.Pictures.of(*arrays, names=("first", "second")).sizes
        [3, 3]
    """

    images: Tensor
    labels: Tensor
    names: tuple[str, ...]
    groups: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, images: Pixels, labels: NDArray[np.generic], names: Iterable[Any], groups: Iterable[Any] = ()
    ) -> Pictures:
        """Return arrays as pictures, without a copy where torch can share their memory."""
        import torch

        images = np.require(images, requirements=("C", "W"))  # as torch wants them
        labelled = torch.from_numpy(labels.astype(np.int64))
        return cls(torch.from_numpy(images), labelled, tuple(map(str, names)), tuple(map(str, groups)))

    @classmethod
    def of_rows(cls, rows: Tensor, names: tuple[str, ...], groups: tuple[str, ...] = ()) -> Pictures:
        """Return pictures from uint8 (classes, per_class, channels, height, width)."""
        import torch

        labels = torch.arange(len(rows)).repeat_interleave(rows.shape[1])
        return cls(rows.flatten(0, 1), labels, names, groups)

    @property
    def sizes(self) -> list[int]:
        """Pictures of each class."""
        sizes: list[int] = self.labels.bincount(minlength=len(self.names)).tolist()
        return sizes

    def rows(self) -> tuple[Tensor, tuple[int, ...]]:
        """Return one row for each class, as episodes want them, and how many pictures of each row count.

        Returns:
            uint8 (classes, per_class, channels, height, width), and the sizes of the classes if they differ. Then the
            rest of a row repeats its pictures. Pictures that are sorted by class are not copied.
        """
        import torch

        sizes = torch.tensor(self.sizes)
        most = int(sizes.max())
        if bool((sizes == most).all()) and bool((self.labels.diff() >= 0).all()):
            return self.images.view(len(sizes), most, *self.images.shape[1:]), ()
        within = torch.arange(most) % sizes[:, None]
        place = self.labels.argsort(stable=True)[(sizes.cumsum(0) - sizes)[:, None] + within]
        return self.images[place], () if bool((sizes == most).all()) else tuple(sizes.tolist())

    def at(self, indices: Sequence[int]) -> Pictures:
        """Return these of the pictures, in this order."""
        import torch

        chosen = torch.tensor(indices, dtype=torch.int64)
        return self._replace(images=self.images[chosen], labels=self.labels[chosen])

    def only(self, classes: Sequence[int]) -> Pictures:
        """Return the pictures of these classes alone, class by class."""
        import torch

        rows = [(self.labels == label).nonzero().flatten() for label in classes]
        labels = torch.arange(len(rows)).repeat_interleave(torch.tensor(list(map(len, rows)), dtype=torch.int64))
        names, groups = (tuple(each[i] for i in classes) if each else () for each in (self.names, self.groups))
        return Pictures(self.images[torch.cat(rows)], labels, names, groups)

    def few(self, per_class: int, seed: int) -> Pictures:
        """Return so many pictures of each class; fewer are a part of more."""
        sizes = self.sizes
        smallest = min(range(len(sizes)), key=sizes.__getitem__)
        if not 1 <= per_class <= sizes[smallest]:
            reason = f"per_class = {per_class}, but a class has {how_many(sizes[smallest], 'picture')} to train on"
            raise problem(self.names[smallest], reason, f"Ask for 1 to {sizes[smallest]} of each class")
        return self.at(drawn_per_class(self.labels.numpy(), per_class, seed))

    def to(self, device: torch.device | str) -> Pictures:
        """Return the same on a device."""
        return self._replace(images=self.images.to(device), labels=self.labels.to(device))


class Labelled(NamedTuple):
    """Hold pictures to learn from, to make choices with, and to report on: the same classes, different pictures.

    Args:
        train: To learn from.
        val: To make choices with.
        test: To report on.
        validation: How `val` was chosen, for reports.

    Example:
        >>> import metastep as ms
        >>> ms.data.load("digits").labelled(per_class=10).train.images.shape
        torch.Size([100, 1, 28, 28])
    """

    train: Pictures
    val: Pictures
    test: Pictures
    validation: str

    @property
    def counts(self) -> tuple[int, int, int]:
        """Pictures of each part."""
        return len(self.train.labels), len(self.val.labels), len(self.test.labels)


def joined(sets: Sequence[Pictures]) -> Pictures:
    """Return pictures of different classes as one."""
    import torch

    starts = np.cumsum([0, *(len(each.names) for each in sets)])
    labels = [each.labels + int(start) for each, start in zip(sets, starts, strict=False)]
    names, groups = (tuple(name for each in sets for name in each[field]) for field in (2, 3))
    return Pictures(torch.cat([each.images for each in sets]), torch.cat(labels), names, groups)


def held_out(pool: Pictures, held: list[int], test: Pictures, rule: str) -> Labelled:
    """Return parts: of the pictures for training, those at `held` are for validation."""
    return Labelled(pool.at(complement(held, len(pool.labels))), pool.at(held), test, rule)


def labelled_at(whole: Pictures, ends: Sequence[Sequence[int]], seed: int, rule: str) -> Labelled:
    """Return parts: each class is shuffled, and cut at its two ends."""
    rows = shuffled_classes(whole.labels.numpy(), seed)
    cut = [[row[a:b] for a, b in pairwise((0, *end, len(row)))] for row, end in zip(rows, ends, strict=True)]
    train, val, test = (whole.at(sorted(i for row in cut for i in row[part])) for part in range(3))
    return Labelled(train, val, test, f"{rule} of each class, drawn with seed {seed}")


def labelled_by_share(whole: Pictures, seed: int, subject: Any) -> Labelled:
    """Return parts: 60 % of each class for training, 20 % for validation, 20 % for testing.

    Raises:
        DataError: Classes are too small. All of them are named, so that they can be put right in one go.
    """
    least, sizes = len(FRACTIONS), whole.sizes
    small = [f"{printable(name)} ({n})" for name, n in zip(whole.names, sizes, strict=True) if n < least]
    if small:
        need = f"training, validation and testing need {least} pictures of each class"
        fewer = f"{len(small)} {'has' if len(small) == 1 else 'have'} fewer"
        reason = f"{need}, but of {how_many(len(sizes), 'class', 'classes')} {fewer}: {', '.join(small)}"
        raise problem(subject, reason, "Add pictures, or remove what has too few")
    shares = (sizes_from_fractions(size, FRACTIONS) for size in sizes)
    return labelled_at(whole, [(train, train + val) for train, val, _ in shares], seed, f"{FRACTIONS[1]:.0%}")
