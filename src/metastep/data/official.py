"""Define data sets with official training and test parts; some of the training part is for validation.

Photos that lists assign to the parts are read from folders or archives. The lists are text, or cells of MATLAB 5 files.
"""

import struct
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from metastep.data.cache import Arrays, cached
from metastep.data.errors import Progress, counted, problem
from metastep.data.files import fingerprint, read_bytes, read_members, read_named, read_pack
from metastep.data.images import ToPixels, empty, open_picture, read_sheets, stretched
from metastep.data.pictures import (
    Labelled,
    Pictures,
    Pixels,
    Sizes,
    Split,
    classes_by_share,
    drawn,
    drawn_per_class,
    held_out,
    published,
)
from metastep.data.registry import DataSet, View

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
        """Decode once and keep in the cache folder, for all data sets that read the same files alike."""
        side, reader = self.size or self.side, type(self).read
        key = f"{RECIPE} {reader.__module__}.{reader.__qualname__} {side} {' '.join(map(fingerprint, files))}"
        return cached(f"{reader.__qualname__.partition('.')[0]}-{side}", key, lambda: self.read(files, side))

    def _held(self, arrays: Arrays, seed: int) -> tuple[list[int], str]:
        """Return the indices of the validation pictures, and the rule that gave them."""
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


# ---- photos that lists assign to training and test


ClassOf = Callable[[str], str]


def folder_of(name: str) -> str:
    """Return the class of "class/file"."""
    return name.partition("/")[0]


def list_file(path: Path, name: str) -> bytes:
    """Return the list itself, or from an archive the list of that name."""
    return read_bytes(path) if path.name == name else read_named(path, (name,))[name]


def lines_of(path: Path, name: str) -> list[str]:
    """Return the lines of a list, without those that are empty."""
    try:
        return [line.strip() for line in list_file(path, name).decode().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise problem(path, f"{name} is no list of files", "Get it again") from error


def read_listed(
    path: Path,
    train: Sequence[str],
    test: Sequence[str],
    class_of: ClassOf,
    size: int,
    progress: Progress,
    to_pixels: ToPixels = stretched,
) -> Arrays:
    """Read pictures sorted by class and file, as published indices count them.

    train, test: the last parts of the pictures' paths, as many parts for each.
    """
    names = sorted({class_of(name) for name in train})
    if strange := {class_of(name) for name in test}.symmetric_difference(names):
        raise problem(path, f"the class {min(strange)} is not in both lists", "Get the lists again")
    ordered = [sorted(part, key=lambda name: (class_of(name), name)) for part in (train, test)]
    pictures = _read(path, [*ordered[0], *ordered[1]], size, progress, to_pixels)
    labels = [np.array([names.index(class_of(name)) for name in part], np.int64) for part in ordered]
    return arrays_of((pictures[: len(train)], labels[0]), (pictures[len(train) :], labels[1]), names)


def _read(path: Path, names: Sequence[str], size: int, progress: Progress, to_pixels: ToPixels) -> Pixels:
    """Return the named pictures in that order, in colour, (pictures, 3, size, size)."""
    place = {name: i for i, name in enumerate(names)}
    parts = names[0].count("/") + 1 if names else 1

    def key(member: str) -> str:
        return "/".join(PurePosixPath(member).parts[-parts:])

    images, absent = empty(len(names), 3, size), set(names)
    members = read_members(path, keep=lambda member: key(member) in place)
    for member, data in counted(members, len(names), progress):
        images[place[key(member)]] = to_pixels(open_picture(data, f"{path}/{member}", smallest=size), size)
        absent.discard(key(member))
    if absent or len(place) != len(names):
        reason = f"lacks {len(absent):,} of the {len(names):,} listed pictures, {min(absent, default='none')} for one"
        raise problem(path, reason, "Get them again")
    return images


# ---- texts in cell arrays of MATLAB 5 files: just enough for lists of file names


HEADER = 128  # bytes
MATRIX, COMPRESSED = 14, 15  # types of elements
CHAR = 4  # a class of matrices
CODECS = {1: "latin-1", 2: "latin-1", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le", 18: "utf-32-le"}  # of characters
Element = tuple[int, bytes]  # type and content


def read_cell_texts(data: bytes, name: str, path: str | Path) -> list[str]:
    """Return the texts of the variable `name`, a cell array."""
    if data[126:128] != b"IM":  # written by a machine with the usual order of bytes
        raise problem(path, "is no MATLAB 5 file", "Get it again")
    try:
        for kind, content in _elements(data[HEADER:]):
            if kind == MATRIX and (parts := list(_elements(content)))[2][1].decode("latin-1") == name:
                return [_text(cell) for _, cell in parts[3:]]
    except (struct.error, zlib.error, IndexError, KeyError, UnicodeError) as error:
        raise problem(path, f"is damaged or cut short ({error})", "Get it again") from error
    raise problem(path, f"has no variable {name}", "Get it again")


def _elements(data: bytes) -> Iterator[Element]:
    at = 0
    while at < len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if kind >> 16:  # a small one: its size in the upper half, its content instead of the size
            yield kind & 0xFFFF, data[at + 4 : at + 4 + (kind >> 16)]
            at += 8
            continue
        content = data[at + 8 : at + 8 + size]
        if len(content) < size:
            raise struct.error(f"an element of {size:,} bytes ends after {len(content):,}")
        if kind == COMPRESSED:
            yield from _elements(zlib.decompress(content))
            at += 8 + size
        else:
            yield kind, content
            at += 8 + size + -size % 8  # filled up to eights


def _text(cell: bytes) -> str:
    """Parse a matrix: flags, sizes and name, then content."""
    (_, flags), _, _, (kind, content) = _elements(cell)
    if flags[0] != CHAR:
        raise KeyError("a cell that is no text")
    return content.decode(CODECS[kind])
