"""Data sets with an official training part and an official test part; some of the training part is for choices."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep.data import holdout
from metastep.data.cache import Arrays, cached
from metastep.data.errors import missing, problem
from metastep.data.files import entries, fingerprint, read_pack
from metastep.data.packs import read_sheets
from metastep.data.pictures import LabelledSplits, Pixels, labelled
from metastep.data.progress import Progress
from metastep.data.splits import Sizes

Part = tuple[Pixels, NDArray[Any]]  # images and labels
PACKED_SIDE = 32
RECIPE = 1  # raise it when readers change what they return: older caches are then ignored


@dataclass(frozen=True)
class Official:
    """One data set: how it is found, read and split."""

    name: str
    what: str
    """What to look for, for the message that says it is not there."""
    source: str
    """Where to get it."""
    side: int
    """Pixels of the pictures' side, unless others are asked for."""
    sizes: Sizes
    """Pictures for training, validation and testing, as in the paper's table."""
    find: Callable[[Path], tuple[Path, ...]]
    """Its files in a data directory; none when it is not, or not wholly, there."""
    read: Callable[[tuple[Path, ...], int, Progress], Arrays]
    """From these files at this size; see `arrays_of`."""
    indices: str = ""
    """What L2T-ww's validation indices are called, where they were published."""
    balanced: bool = True
    """Whether a draw takes the same number from each class."""


def load_official(official: Official, root: Path, size: int | None, seed: int, progress: Progress) -> LabelledSplits:
    """Decoded once and kept in the cache folder; validation by L2T-ww's indices where they apply, else drawn."""
    entries(root)  # says so if the folder cannot be opened at all
    source = official.find(root)
    if not source:
        raise missing(root, official.what, official.source)
    side = size or official.side
    key = f"{RECIPE} {side} {' '.join(map(fingerprint, source))}"
    arrays = cached(f"{official.name}-{side}", key, lambda: official.read(source, side, progress))
    return split(official, arrays, root, seed, source[0])


def arrays_of(train: Part, test: Part, names: Iterable[str], *, in_order: bool = True) -> Arrays:
    """What readers return. `in_order`: whether the training part is in its official order."""
    return {
        "train_images": train[0],
        "train_labels": train[1],
        "test_images": test[0],
        "test_labels": test[1],
        "names": np.array(list(names)),
        "in_order": np.array(in_order),
    }


def read_labelled_pack(path: Path, progress: Progress, *, in_order: bool) -> Arrays:
    """A pack of sheets of 32x32: the training part, then the test part."""
    pack = read_pack(path, ("y_train", "y_test", "classes"))
    images, train = read_sheets(path, PACKED_SIDE, progress), len(pack["y_train"])
    if len(images) != train + len(pack["y_test"]):
        raise problem(path, f"has {len(images):,} pictures, but another number of labels", "Copy it again")
    parts = (images[:train], pack["y_train"]), (images[train:], pack["y_test"])
    return arrays_of(*parts, pack["classes"], in_order=in_order)


def split(official: Official, arrays: Arrays, root: Path, seed: int, source: Path) -> LabelledSplits:
    """The three parts, whose sizes must be those of the paper."""
    pool, test = (
        labelled(arrays[f"{part}_images"], arrays[f"{part}_labels"], arrays["names"]) for part in ("train", "test")
    )
    training, choices, testing = official.sizes
    found, expected = (len(pool.labels), len(test.labels)), (training + choices, testing)
    if found != expected:
        reason = "has {:,} pictures for training and {:,} for testing instead of {:,} and {:,}"
        raise problem(source, reason.format(*found, *expected), f"Get the whole data set: {official.source}")
    held, rule = _held(official, arrays, root, seed)
    return LabelledSplits(pool.at(holdout.complement(held, len(pool.labels))), pool.at(held), test, rule)


def _held(official: Official, arrays: Arrays, root: Path, seed: int) -> tuple[list[int], str]:
    """Indices of the validation pictures, and the rule that gave them."""
    labels, count = arrays["train_labels"], official.sizes[1]
    if arrays["in_order"]:
        indices = holdout.published(root, official.indices, count, len(labels))
        if indices is not None:
            return indices, f"L2T-ww's {count:,} indices"
    if not official.balanced:
        return holdout.drawn(labels, count, seed), f"{count:,} drawn with seed {seed}"
    each = count // len(arrays["names"])
    return holdout.drawn_per_class(labels, each, seed), f"{each} of each class, drawn with seed {seed}"
