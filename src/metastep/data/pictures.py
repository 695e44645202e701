"""Keep pictures and their classes as bytes, and say which are for training, for choices, and for the final number.

Every draw is seeded and made by Python's own generator, whose results are the same in every version and on every
machine. This module loads torch when pictures are first made, so that data sets can be listed without it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from metastep.data.errors import DataError, printable, problem
from metastep.data.files import exists, read_pack
from metastep.errors import how_many

if TYPE_CHECKING:
    import torch
    from torch import Tensor


Part = Literal["train", "val", "test"]
Split = Literal["train", "val", "trainval", "test", "all"]
Sizes = tuple[int, int, int]  # train, val, test
Labels = NDArray[Any]

PARTS: tuple[Part, ...] = get_args(Part)
SPLITS: tuple[Split, ...] = get_args(Split)
CLASS_FRACTIONS = (0.64, 0.16, 0.20)  # of the classes for training, validation and testing, where no split is published
INDICES = "l2t_validation_indices.npz"  # those of L2T-ww, where they were published


def parts_of(split: Split) -> tuple[Part, ...]:
    """Return the parts of a split: `trainval` is `train` and `val`, to train once more on both after choices."""
    return {"trainval": PARTS[:2], "all": PARTS}.get(split, tuple(part for part in PARTS if part == split))


def split_classes(sizes: Sizes, split: Split) -> list[int]:
    """Return the split's classes after a shuffle of all of them, always the same; `all` keeps their own order."""
    if split == "all":
        return list(range(sum(sizes)))
    order = random.Random(0).sample(range(sum(sizes)), sum(sizes))
    ends = pairwise(accumulate(sizes, initial=0))
    pieces = {part: order[start:end] for part, (start, end) in zip(PARTS, ends, strict=True)}
    return [index for part in parts_of(split) for index in pieces[part]]


def classes_by_share(count: int, split: Split) -> list[int]:
    """Return which classes belong to a split, for a data set without a published one.

    Args:
        count: Classes in all.
        split: train, val, test, trainval or all.

    Returns:
        Numbers of classes, drawn once and for all: 64 % for training, 16 % for validation, 20 % for testing.

    Example:
        >>> import metastep as ms
        >>> [len(ms.data.classes_by_share(50, split)) for split in ("train", "val", "test", "all")]
        [32, 8, 10, 50]
    """
    return split_classes(sizes_from_fractions(count, CLASS_FRACTIONS), split)


def listed_classes(lists: Mapping[Part, Sequence[str]], names: Sequence[str], split: Split) -> list[int]:
    """Return which of the classes are a split's by published lists of names; `all` keeps their own order."""
    place = {name: i for i, name in enumerate(names)}
    listed = [name for part in PARTS for name in lists[part]]
    if sorted(listed) != sorted(names):
        strange = min(set(listed).symmetric_difference(place), default="one that is listed twice")
        raise problem(strange, "is not in both the published lists and the data", "Get the data again")
    if split == "all":
        return list(range(len(names)))
    return [place[name] for part in parts_of(split) for name in lists[part]]


def known_split(split: str, among: Sequence[Split] = SPLITS) -> Split:
    """Return the split itself, if it is one that this data has."""
    for known in among:
        if split == known:
            return known
    raise DataError(f"split {split!r}: no such split here. Choose one of {', '.join(among)}.")


def sizes_from_fractions(count: int, fractions: Sequence[float]) -> Sizes:
    """Return whole numbers that sum to `count`; a fraction above 0 gets at least one if it can."""
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise DataError(f"fractions {fractions}: must be three numbers >= 0 that sum to 1.")
    ends = [round(count * end) for end in accumulate(fractions, initial=0.0)]
    sizes = [end - start for start, end in pairwise(ends)]
    for part, fraction in enumerate(fractions):
        if fraction > 0 and sizes[part] == 0 < count:
            sizes[sizes.index(max(sizes))] -= 1
            sizes[part] += 1
    train, val, test = sizes
    return train, val, test


def published(root: Path, key: str, count: int, total: int) -> list[int] | None:
    """Return L2T-ww's validation indices into the official training order; None if the data directory lacks them."""
    path = root / INDICES
    if not key or not exists(path):
        return None
    indices = [int(index) for index in read_pack(path, (key,))[key]]
    if len(set(indices)) != count or not all(0 <= index < total for index in indices):
        raise problem(path, f"{key} are not {count:,} different indices below {total:,}", "Copy it again, or remove it")
    return sorted(indices)


def drawn(labels: Labels, count: int, seed: int) -> list[int]:
    """Return `count` indices, whatever their classes."""
    return sorted(random.Random(seed).sample(range(len(labels)), count))


def drawn_per_class(labels: Labels, each: int, seed: int) -> list[int]:
    """Return `each` indices of every class."""
    return sorted(index for row in shuffled_classes(labels, seed) for index in row[:each])


def shuffled_classes(labels: Labels, seed: int) -> list[list[int]]:
    """Return the indices of each class, shuffled: the first few of a class are part of the first more."""
    generator = random.Random(seed)
    rows = [np.flatnonzero(labels == label).tolist() for label in range(int(labels.max()) + 1)]
    return [generator.sample(row, len(row)) for row in rows]


# ---- pictures


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
        """Return the number of pictures of each class."""
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
    others = sorted(set(range(len(pool.labels))).difference(held))
    return Labelled(pool.at(others), pool.at(held), test, rule)


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
