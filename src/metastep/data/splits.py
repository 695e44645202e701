"""Which classes are for training, for choices, and for the final number."""

import random
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Literal, get_args

from metastep.data.errors import DataError

Part = Literal["train", "val", "test"]
Split = Literal["train", "val", "trainval", "test", "all"]
Sizes = tuple[int, int, int]  # train, val, test

PARTS: tuple[Part, ...] = get_args(Part)
SPLITS: tuple[Split, ...] = get_args(Split)


def parts_of(split: Split) -> tuple[Part, ...]:
    """`trainval` is `train` and `val`: choose with the two, then train once more on both."""
    return {"trainval": PARTS[:2], "all": PARTS}.get(split, tuple(part for part in PARTS if part == split))


def split_classes(sizes: Sizes, split: Split) -> list[int]:
    """Indices of the split's classes, after a shuffle of all of them, always the same; `all` keeps their own order.

    Python's own generator, because its shuffle is the same in every version and on every machine.
    """
    if split == "all":
        return list(range(sum(sizes)))
    order = random.Random(0).sample(range(sum(sizes)), sum(sizes))
    ends = pairwise(accumulate(sizes, initial=0))
    pieces = {part: order[start:end] for part, (start, end) in zip(PARTS, ends, strict=True)}
    return [index for part in parts_of(split) for index in pieces[part]]


def known_split(split: str, among: Sequence[Split] = SPLITS) -> Split:
    """The split itself, if it is one that this data has."""
    for known in among:
        if split == known:
            return known
    raise DataError(f"split {split!r}: no such split here. Choose one of {', '.join(among)}.")


def sizes_from_fractions(count: int, fractions: Sequence[float]) -> Sizes:
    """Whole numbers of classes that sum to `count`; a fraction above 0 gets at least one if it can."""
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
