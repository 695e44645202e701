"""Say which classes, and which pictures of a class, are for training, for choices, and for the final number.

Every draw is seeded and made by Python's own generator, whose results are the same in every version and on every
machine.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from metastep.data.errors import DataError, problem
from metastep.data.files import exists, read_pack

Part = Literal["train", "val", "test"]
Split = Literal["train", "val", "trainval", "test", "all"]
Sizes = tuple[int, int, int]  # train, val, test
Labels = NDArray[Any]

PARTS: tuple[Part, ...] = get_args(Part)
SPLITS: tuple[Split, ...] = get_args(Split)
FRACTIONS = (0.64, 0.16, 0.20)  # of the classes for training, validation and testing, where no split is published
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
    return split_classes(sizes_from_fractions(count, FRACTIONS), split)


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


def complement(indices: Sequence[int], total: int) -> list[int]:
    """Return all the other indices."""
    return sorted(set(range(total)).difference(indices))
