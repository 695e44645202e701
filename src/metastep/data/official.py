"""Data sets with an official training part and an official test part; some of the training part is for choices."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from metastep.data.cache import Arrays, cached
from metastep.data.errors import problem
from metastep.data.files import fingerprint, read_pack
from metastep.data.packs import read_sheets
from metastep.data.pictures import Labelled, Pictures, Pixels, held_out
from metastep.data.progress import Progress
from metastep.data.registry import DataSet, View
from metastep.data.splits import Sizes, Split, classes_by_share, drawn, drawn_per_class, published

Half = tuple[Pixels, NDArray[Any]]  # images and labels
RECIPE = 2  # raise it when readers change what they return: older caches are then ignored


class PictureSplit(DataSet):
    """Describe a data set whose pictures are published as training and test: `counts`, `find` and `read` are its own.

    Args:
        name: The name that it was asked for by.
        root: The folder that it is read from.
        size: Pixels along the side of the pictures; None for the usual ones.
        progress: Called with what is done and the total while pictures are read.

    Example:
        >>> import metastep as ms
        >>> from metastep.core.registry import named
        >>> issubclass(named("dataset", "stl10"), ms.data.PictureSplit)
        True
    """

    view: ClassVar[View] = "labels"
    counts: ClassVar[Sizes]
    """Pictures for training, validation and testing, as in the paper's table."""
    indices: ClassVar[str] = ""
    """What L2T-ww's validation indices are called, where they were published."""
    balanced: ClassVar[bool] = True
    """Whether a draw takes the same number from each class."""

    def __init_subclass__(cls) -> None:
        if hasattr(cls, "counts"):
            cls.labelled_in_words = "{:,} train, {:,} val, {:,} test".format(*cls.counts)

    @abstractmethod
    def read(self, files: tuple[Path, ...], size: int) -> Arrays:
        """Read both parts from these files at this size, as `arrays_of` returns them."""

    def split_classes(self, names: Sequence[str], split: Split) -> list[int]:
        """Return which classes a split of episodes has; drawn, unless a data set has lists of its own."""
        return classes_by_share(len(names), split)

    def read_classes(self, split: Split) -> Pictures:
        arrays = self._arrays(self.files())
        images, labels = (np.concatenate([arrays[f"{part}_{kind}"] for part in ("train", "test")])
                          for kind in ("images", "labels"))  # fmt: skip
        names = list(map(str, arrays["names"]))
        return Pictures.of(images, labels, names).only(self.split_classes(names, split))

    def read_labelled(self, seed: int) -> Labelled:
        """Read the three parts, whose sizes must be those of the paper."""
        files = self.files()
        arrays = self._arrays(files)
        pool, test = (
            Pictures.of(arrays[f"{part}_images"], arrays[f"{part}_labels"], arrays["names"])
            for part in ("train", "test")
        )
        training, choices, testing = self.counts
        found, expected = (len(pool.labels), len(test.labels)), (training + choices, testing)
        if found != expected:
            reason = "has {:,} pictures for training and {:,} for testing instead of {:,} and {:,}"
            raise problem(files[0], reason.format(*found, *expected), f"Get the whole data set: {self.source}")
        held, rule = self._held(arrays, seed)
        return held_out(pool, held, test, rule)

    def _arrays(self, files: tuple[Path, ...]) -> Arrays:
        """Decoded once and kept in the cache folder, for all data sets that read the same files alike"""
        side, reader = self.size or self.side, type(self).read
        key = f"{RECIPE} {reader.__module__}.{reader.__qualname__} {side} {' '.join(map(fingerprint, files))}"
        return cached(f"{reader.__qualname__.partition('.')[0]}-{side}", key, lambda: self.read(files, side))

    def _held(self, arrays: Arrays, seed: int) -> tuple[list[int], str]:
        """Indices of the validation pictures, and the rule that gave them"""
        labels, count = arrays["train_labels"], self.counts[1]
        if arrays["in_order"]:
            indices = published(self.root, self.indices, count, len(labels))
            if indices is not None:
                return indices, f"L2T-ww's {count:,} indices"
        if not self.balanced:
            return drawn(labels, count, seed), f"{count:,} drawn with seed {seed}"
        each = count // len(arrays["names"])
        return drawn_per_class(labels, each, seed), f"{each} of each class, drawn with seed {seed}"


def arrays_of(train: Half, test: Half, names: Iterable[str], *, in_order: bool = True) -> Arrays:
    """Return what readers return. `in_order`: whether the training part is in its official order."""
    return {
        "train_images": train[0],
        "train_labels": train[1],
        "test_images": test[0],
        "test_labels": test[1],
        "names": np.array(list(names)),
        "in_order": np.array(in_order),
    }


def read_labelled_pack(path: Path, side: int, progress: Progress, *, in_order: bool) -> Arrays:
    """Read a pack of sheets: the training part, then the test part."""
    pack = read_pack(path, ("y_train", "y_test", "classes"))
    images, train = read_sheets(path, side, progress), len(pack["y_train"])
    if len(images) != train + len(pack["y_test"]):
        raise problem(path, f"has {len(images):,} pictures, but another number of labels", "Copy it again")
    parts = (images[:train], pack["y_train"]), (images[train:], pack["y_test"])
    return arrays_of(*parts, pack["classes"], in_order=in_order)
