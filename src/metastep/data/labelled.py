"""Labelled data sets by name, split into pictures to learn from, to make choices with, and to report on."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from metastep.data.catalog import data_directory
from metastep.data.characters import load_characters
from metastep.data.digits import load_digits
from metastep.data.errors import DataError, printable
from metastep.data.holdout import few
from metastep.data.images import LabelledSet, LabelledSplits
from metastep.data.official import Official, load_official
from metastep.data.progress import Progress, silent
from metastep.data.stl10 import STL10

__all__ = ["LabelledSet", "LabelledSplits", "load_labelled"]


class Request(NamedTuple):
    """What a loader is asked for."""

    root: Path | None
    rest: str
    """What follows the colon of a name."""
    size: int | None
    seed: int
    progress: Progress


@dataclass(frozen=True)
class LabelledEntry:
    """One data set."""

    name: str
    summary: str
    licence: str
    source: str
    """Where to get it."""
    load: Callable[[Request], LabelledSplits]
    locate: Callable[[Path], tuple[Path, ...]]
    """Its files in a data directory; none when it is not, or not wholly, there."""


def load_labelled(
    name: str,
    root: Path | None = None,
    size: int | None = None,
    progress: Progress = silent,
    seed: int = 0,
    per_class: int | None = None,
) -> LabelledSplits:
    """A data set by name, as bytes.

    name: one of `LABELLED`; glyphs:SCRIPT,SCRIPT or glyphs:all for other characters; or a user's own pictures, one
        sub-folder per class, as folder:PATH or just its path.
    root: the data directory; None takes it from METASTEP_DATA.
    size: pixels of the pictures' side; None for the usual one.
    seed: of the draws where no published split says which picture belongs where; not that of a training run.
    per_class: train on so many pictures of each class, the same whatever else is asked for; None for all.
    """
    if size is not None and size < 1:
        raise DataError(f"size = {size}: pictures need at least 1 pixel.")
    rest = name.partition(":")[2]
    splits = labelled_entry(name).load(Request(root or data_directory(), rest, size, seed, progress))
    return splits if per_class is None else splits._replace(train=few(splits.train, per_class, seed))


def labelled_entry(name: str) -> LabelledEntry:
    """The data set of that name."""
    for entry in LABELLED:
        if name.partition(":")[0] == entry.name:
            return entry
    names = ", ".join(entry.name for entry in LABELLED)
    raise DataError(f"labelled data set {printable(name)!r}: unknown. Choose one of {names}, or a folder's path.")


def _official(official: Official, request: Request) -> LabelledSplits:
    if request.root is None:
        remedy = f"Name the folder that has it with --data or METASTEP_DATA; to get it: {official.source}"
        raise DataError(f"{official.name}: where is it? {remedy}.")
    return load_official(official, request.root.expanduser(), request.size, request.seed, request.progress)


def _characters(request: Request) -> LabelledSplits:
    return load_characters([script for script in request.rest.split(",") if script], request.size, request.progress)


def _nowhere(root: Path) -> tuple[Path, ...]:
    del root  # it needs no files
    return ()


def _entry(official: Official, summary: str, licence: str) -> LabelledEntry:
    return LabelledEntry(official.name, summary, licence, official.source, partial(_official, official), official.find)


LABELLED = (
    LabelledEntry(
        "digits",
        "1,797 handwritten digits of 8x8, shown at 28x28; 40 of each class to train on",
        "CC BY 4.0 (E. Alpaydin, C. Kaynak; UCI)",
        "comes with scikit-learn",
        lambda request: load_digits(request.size, request.seed),
        _nowhere,
    ),
    LabelledEntry(
        "glyphs",
        "characters of the Cyrillic and Greek scripts (others as glyphs:SCRIPT,…), 20 drawings each, 28x28",
        "free (drawn from the DejaVu fonts)",
        "comes with metastep",
        _characters,
        _nowhere,
    ),
    _entry(STL10, "10 classes of 500 photos to train on, 800 to test, 96x96 made 32x32", "research"),
)
