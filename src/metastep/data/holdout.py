"""Which pictures of a training part are set aside for choices.

Every draw is seeded and made by Python's own generator, whose results are the same in every version and on every
machine.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep.data.errors import problem
from metastep.data.files import exists, read_pack
from metastep.data.pictures import LabelledSet
from metastep.errors import how_many

INDICES = "l2t_validation_indices.npz"  # those of L2T-ww, where they were published

Labels = NDArray[Any]


def published(root: Path, key: str, count: int, total: int) -> list[int] | None:
    """L2T-ww's validation indices into the official training order; None where the data directory lacks them."""
    path = root / INDICES
    if not key or not exists(path):
        return None
    indices = [int(index) for index in read_pack(path, (key,))[key]]
    if len(set(indices)) != count or not all(0 <= index < total for index in indices):
        raise problem(path, f"{key} are not {count:,} different indices below {total:,}", "Copy it again, or remove it")
    return sorted(indices)


def drawn(labels: Labels, count: int, seed: int) -> list[int]:
    """`count` indices, whatever their classes."""
    return sorted(random.Random(seed).sample(range(len(labels)), count))


def drawn_per_class(labels: Labels, each: int, seed: int) -> list[int]:
    """`each` indices of every class."""
    return sorted(index for row in shuffled_classes(labels, seed) for index in row[:each])


def shuffled_classes(labels: Labels, seed: int) -> list[list[int]]:
    """The indices of each class, shuffled: what is taken from their beginnings for less is part of what is for more."""
    generator = random.Random(seed)
    rows = [np.flatnonzero(labels == label).tolist() for label in range(int(labels.max()) + 1)]
    return [generator.sample(row, len(row)) for row in rows]


def few(data: LabelledSet, per_class: int, seed: int) -> LabelledSet:
    """`per_class` pictures of each class."""
    sizes = data.sizes
    smallest = min(range(len(sizes)), key=sizes.__getitem__)
    if not 1 <= per_class <= sizes[smallest]:
        reason = f"per_class = {per_class}, but a class has {how_many(sizes[smallest], 'picture')} to train on"
        raise problem(data.names[smallest], reason, f"Ask for 1 to {sizes[smallest]} of each class")
    return data.at(drawn_per_class(data.labels.numpy(), per_class, seed))


def complement(indices: list[int], total: int) -> list[int]:
    """All the others."""
    rest = np.ones(total, dtype=bool)
    rest[indices] = False
    return [int(index) for index in np.flatnonzero(rest)]
