"""Data sets with an official training part and an official test part; some of the training part is for choices."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from metastep.data import holdout
from metastep.data.cache import Arrays, cached
from metastep.data.errors import missing, problem
from metastep.data.files import entries, fingerprint
from metastep.data.images import LabelledSplits, labelled
from metastep.data.progress import Progress
from metastep.data.splits import Sizes

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
    """From these files at this size: images and labels of `train` and `test`, `names`, and whether `in_order`."""
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


def split(official: Official, arrays: Arrays, root: Path, seed: int, source: Path) -> LabelledSplits:
    """The three parts, whose sizes must be those of the paper."""
    pool, test = (labelled(arrays[f"{part}_images"], arrays[f"{part}_labels"], arrays["names"]) for part in _PARTS)
    training, choices, testing = official.sizes
    found, expected = (len(pool.labels), len(test.labels)), (training + choices, testing)
    if found != expected:
        reason = "has {:,} pictures for training and {:,} for testing instead of {:,} and {:,}"
        raise problem(source, reason.format(*found, *expected), f"Get the whole data set: {official.source}")
    held, rule = _held(official, arrays, root, seed)
    return LabelledSplits(pool.at(holdout.complement(held, len(pool.labels))), pool.at(held), test, rule)


_PARTS = ("train", "test")


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
