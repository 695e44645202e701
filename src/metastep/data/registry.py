"""Describe data sets, find them by name, and read them for episodes or for labelled batches.

A class joins with `@metastep.register("dataset", name)`. This module loads no torch.
"""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from metastep.core.registry import named, names
from metastep.data.episodes import FOLDER, PREFIX
from metastep.data.errors import DataError, Progress, missing, printable, problem, silent
from metastep.data.files import entries, exists, find_parts, first_existing
from metastep.data.pictures import SPLITS, Labelled, Pictures, Split, known_split, labelled_by_share
from metastep.errors import MetastepError

View = Literal["episodes", "labels"]
RESEARCH = "non-commercial research and education"


class Download(NamedTuple):
    """A file that may be downloaded freely."""

    path: str
    """Where it belongs below the data directory."""
    url: str
    checksum: str
    """sha256:…, or md5:… where its publisher gives no better one."""


@dataclass(frozen=True)
class DataSet(ABC):
    """Describe a data set by a class; an object of it has been found, and can be read.

    A class sets `summary`, `licence` and `source`, and says how to find its files and how to read them. Most are a
    `ClassSplit` or a `PictureSplit`. `load` makes the object.

    Args:
        name: The name that it was asked for by.
        root: The folder that it is read from.
        size: Pixels along the side of the pictures; None for the usual ones.
        progress: Called with what is done and the total while pictures are read.

    Raises:
        MetastepError: From its methods: files are missing or broken; the message says where to get them.

    Example:
        >>> import metastep as ms
        >>> glyphs = ms.data.load("glyphs")
        >>> glyphs.shape, glyphs.licence
        ((1, 28), 'free (drawn from the DejaVu fonts)')
    """

    summary: ClassVar[str]
    licence: ClassVar[str]
    source: ClassVar[str]
    """Where to get it."""
    what: ClassVar[str] = ""
    """What to look for, for the message that says it is not there; its name if empty."""
    places: ClassVar[tuple[str, ...]] = ()
    """Files or folders below the data directory; one of them is enough."""
    folders: ClassVar[tuple[str, ...]] = ()
    """Where to look for `parts`: the first folder below the data directory that has all of them counts."""
    parts: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Files or folders that are needed together, where none of `places` is there: the names that each may have."""
    downloads: ClassVar[tuple[Download, ...]] = ()
    embedded: ClassVar[bool] = False
    """Whether it comes with metastep, and so needs no data directory."""
    view: ClassVar[View] = "episodes"
    """What it is usually used for; it serves both."""
    labelled_in_words: ClassVar[str] = "60 % train, 20 % val, 20 % test of each class"
    side: ClassVar[int]
    """Pixels along the side of its pictures for episodes, unless others are asked for."""
    channels: ClassVar[int] = 3

    name: str
    root: Path
    size: int | None = None
    progress: Progress = field(default=silent, compare=False)

    @classmethod
    def find(cls, root: Path) -> tuple[Path, ...]:
        """Return its files below a data directory; none if it is not, or not wholly, there."""
        return first_existing(root, cls.places) or find_parts(root, cls.folders, cls.parts)

    def classes(self, split: str) -> Pictures:
        """Return the classes of a split, with all their pictures, to draw episodes from.

        Args:
            split: train, val or test, which share no class; trainval or all.
        """
        found = self.read_classes(known_split(split))
        self._require_size(found)
        return found

    def labelled(self, seed: int = 0, per_class: int | None = None) -> Labelled:
        """Return all classes, split by picture into training, validation and testing.

        Args:
            seed: Of the draws where no published split says which picture belongs where.
            per_class: Train on so many pictures of each class; None for all.
        """
        parts = self.read_labelled(seed)
        self._require_size(parts.test)
        return parts if per_class is None else parts._replace(train=parts.train.few(per_class, seed))

    def _require_size(self, found: Pictures) -> None:
        if self.size is not None and (side := found.images.shape[-1]) != self.size:
            reason = f"size = {self.size}, but this data set reads its pictures as {side}x{side}"
            raise problem(self.name, reason, "Leave size out, or let it resize them")

    @abstractmethod
    def read_classes(self, split: Split) -> Pictures:
        """Read the classes of one split."""

    @abstractmethod
    def read_labelled(self, seed: int) -> Labelled:
        """Read the three parts."""

    @property
    def shape(self) -> tuple[int, int]:
        """Channels, and pixels along the side, of the pictures of episodes."""
        return self.channels, self.size or self.side

    def files(self) -> tuple[Path, ...]:
        """Return its files, or say what is missing and where to get it."""
        entries(self.root)  # says so if the folder cannot be opened at all
        found = self.find(self.root)
        if not found:
            raise missing(self.root, self.what or self.name, self.source)
        return found


class ClassSplit(DataSet):
    """Describe a data set whose classes are split into train, val and test: `read_classes` is all that it must define.

    Its labelled parts are drawn from all classes.

    Args:
        name: The name that it was asked for by.
        root: The folder that it is read from.
        size: Pixels along the side of the pictures; None for the usual ones.
        progress: Called with what is done and the total while pictures are read.

    Example:
        >>> import numpy as np
        >>> import metastep as ms
        >>> @ms.register("dataset", "grey")
        ... class Grey(ms.data.ClassSplit):
        ...     summary, licence, source, embedded = "20 shades, 20 pictures each", "free", "drawn", True
        ...     side, channels = 8, 1
        ...     def read_classes(self, split):
        ...         shades = np.repeat(ms.data.classes_by_share(20, split), 20)
        ...         pictures = np.ones((len(shades), 1, 8, 8), np.uint8) * shades[:, None, None, None].astype(np.uint8)
        ...         return ms.data.Pictures.of(pictures, np.unique(shades, return_inverse=True)[1], sorted(set(shades)))
        >>> ms.data.load("grey").classes("test").images.shape
        torch.Size([80, 1, 8, 8])
    """

    def read_labelled(self, seed: int) -> Labelled:
        return labelled_by_share(self.read_classes("all"), seed, self.name)


@dataclass(frozen=True)
class Across(DataSet):
    """Train on one data set, and validate and test on another: on its classes, or on its pictures of the same ones."""

    summary = "two data sets: to train on one, and to be validated and tested on the other"
    licence = source = "those of the two data sets"

    first: DataSet = field(kw_only=True)
    second: DataSet = field(kw_only=True)

    @property
    def shape(self) -> tuple[int, int]:
        return self.first.shape

    def read_classes(self, split: Split) -> Pictures:
        if split == "all":
            reason = "trains on one data set and tests on another, so no split has all classes"
            raise problem(self.name, reason, f"Choose one of {', '.join(SPLITS[:-1])}")
        return (self.second if split in ("val", "test") else self.first).read_classes(split)

    def read_labelled(self, seed: int) -> Labelled:
        ours, theirs = self.first.read_labelled(seed), self.second.read_labelled(seed)
        names, others = ours.train.names, theirs.train.names
        if strange := sorted(set(names) ^ set(others)):
            reason = f"labels are learned and tested on the same classes, and {printable(strange[0])} is not in both"
            raise problem(self.name, reason, "Choose two with the same classes, or one; episodes take any")
        order = [others.index(name) for name in names]
        rule = f"{theirs.validation}, of {printable(self.second.name)}"
        return Labelled(ours.train, theirs.val.only(order), theirs.test.only(order), rule)


def load(
    name: str,
    root: Path | None = None,
    size: int | None = None,
    *,
    test: str | None = None,
    progress: Progress = silent,
) -> DataSet:
    """Return a data set by its name, or a user's own folder by its path.

    Args:
        name: One of `metastep data list`, or a folder with one sub-folder per class, as folder:PATH or just its path.
        root: The data directory; None takes it from METASTEP_DATA. What comes with metastep needs none. A relative
            path of a folder that does not exist is looked for there too.
        size: Pixels along the side of the pictures; None for the usual ones.
        test: A second data set, whose pictures are validated and tested on instead.
        progress: Called with what is done and the total while pictures are read.

    Returns:
        The data set: `classes(split)` for episodes, `parts()` for labelled batches. Nothing is read before.

    Raises:
        DataError: Nothing has this name, it is not in the data directory, or the pictures of the two are not alike.

    Example:
        >>> import metastep as ms
        >>> ms.data.load("digits").labelled().counts
        (400, 200, 1197)
        >>> rows, _ = ms.data.load("glyphs").classes("test").rows()
        >>> rows.shape[1:]
        torch.Size([20, 1, 28, 28])
    """
    if size is not None and size < 1:
        raise DataError(f"size = {size}: pictures need at least 1 pixel.")
    kind, place = resolve(name, root)
    found = kind(name, place, size, progress)
    return found if test is None else across(found, load(test, root, size, progress=progress))


def across(first: DataSet, second: DataSet) -> DataSet:
    """Return a data set that trains on the classes of the first, and validates and tests on those of the second."""
    if first.shape != second.shape:
        seen = [f"{printable(each.name)} has pictures of {_shape(each.shape)}" for each in (first, second)]
        raise DataError(
            f"{seen[0]}, and {seen[1]}: one net cannot take both. Choose two data sets in colour or two in grey, and "
            "one data.size for both."
        )
    name = f"{first.name}, tested on {second.name}"
    return Across(name, first.root, first.size, first.progress, first=first, second=second)


def _shape(shape: tuple[int, int]) -> str:
    channels, side = shape
    return f"{side}x{side} in {'grey' if channels == 1 else 'colour'}"


def resolve(name: str, root: Path | None = None) -> tuple[type[DataSet], Path]:
    """Return the data set that is meant, and the folder that it is to be read from."""
    if is_own(name, root):
        return data_set(FOLDER), own_folder(name, root)
    kind = _named(name, root)
    return kind, Path() if kind.embedded else _directory_for(name, kind.source, root)


def data_set(name: str) -> type[DataSet]:
    """Return the class that is registered under a name."""
    kind: type[DataSet] = named("dataset", name)
    return kind


def data_sets() -> dict[str, type[DataSet]]:
    """Return all data sets by name, ours first."""
    return {name: data_set(name) for name in names("dataset")}


def _named(name: str, root: Path | None) -> type[DataSet]:
    if name == FOLDER:
        raise DataError("folder: which one? Give its path, as folder:PATH.")
    try:
        return data_set(name)
    except MetastepError as error:
        is_file = name != "" and exists(own_folder(name, root))
        reason = "is a file, and no folder of classes" if is_file else "there is no such folder here"
        choices = str(error).rstrip(".")
        raise DataError(f"{printable(name)}: {reason}, and {choices}, or give the path of a folder.") from error


def is_own(name: str, root: Path | None) -> bool:
    """Whether a user's folder is meant: it says so, or there is one; the names of data sets come first."""
    if name != FOLDER and name in names("dataset"):
        return False
    return name.startswith(PREFIX) or "/" in name or (name != "" and os.path.isdir(own_folder(name, root)))


def own_folder(name: str, root: Path | None) -> Path:
    """Return a user's folder, folder:PATH or just its path: where that says, or else below the data directory."""
    path = Path(os.path.expanduser(name.removeprefix(PREFIX)))  # unlike Path's own, never an error
    below = (root or data_directory() or Path()).expanduser() / path
    return below if exists(below) and not exists(path) else path


def data_directory() -> Path | None:
    """Return what METASTEP_DATA names."""
    given = os.environ.get("METASTEP_DATA")
    return Path(given) if given else None


def find(root: Path) -> dict[str, tuple[Path, ...]]:
    """Return name -> files, for each data set that a data directory holds."""
    located = {name: kind.find(root) for name, kind in data_sets().items()}
    return {name: paths for name, paths in located.items() if paths}


def _directory_for(name: str, source: str, root: Path | None) -> Path:
    root = root or data_directory()
    remedy = f"Name the folder that has {name} with --data or METASTEP_DATA; to get it: {source}"
    if root is None:
        raise DataError(f"{name}: where is it? {remedy}.")
    if not root.expanduser().is_dir():
        raise problem(root, "the data directory is not there, or no folder", remedy)
    return root.expanduser()
