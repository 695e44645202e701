"""Labelled data sets by name, split into pictures to learn from, to make choices with, and to report on."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from metastep.data.characters import load_characters
from metastep.data.errors import DataError, printable
from metastep.data.holdout import few
from metastep.data.official import Official, load_official
from metastep.data.own import has_parts, load_own
from metastep.data.pictures import LabelledSet, LabelledSplits
from metastep.data.progress import Progress, silent
from metastep.data.registry import ENTRIES, FOLDER, data_directory, directory_for, entry_of, is_path, own_folder
from metastep.data.sets.cifar100 import CIFAR100
from metastep.data.sets.digits import load_digits
from metastep.data.sets.photos import CUB200, INDOOR67, STANFORD40, STANFORD_DOGS
from metastep.data.sets.stl10 import STL10
from metastep.data.sets.tiny_imagenet import TINY_IMAGENET

__all__ = ["LABELLED", "LabelledEntry", "LabelledSet", "LabelledSplits", "load_labelled"]

SEED = 0  # of the draws of every run


class Request(NamedTuple):
    """What a loader is asked for."""

    name: str
    root: Path | None
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
    parts: str
    """How many pictures are for what."""
    load: Callable[[Request], LabelledSplits]
    locate: Callable[[Path], tuple[Path, ...]] = lambda root: ()
    """Its files in a data directory; none when it needs none, or is not wholly there."""
    embedded: bool = False
    """Whether it comes with metastep, or with what metastep needs."""


def load_labelled(
    name: str,
    root: Path | None = None,
    size: int | None = None,
    progress: Progress = silent,
    seed: int = SEED,
    per_class: int | None = None,
) -> LabelledSplits:
    """A data set by name, as bytes.

    name: one of `LABELLED`; glyphs:SCRIPT,SCRIPT or glyphs:all for other characters; or a user's own pictures, one
        sub-folder per class, as folder:PATH or just its path.
    root: the data directory; None takes it from METASTEP_DATA.
    size: pixels of the pictures' side; None for the usual one.
    seed: of the draws where no published split says which picture belongs where; not that of a training run.
    per_class: train on so many pictures of each class, of which fewer are a part of more; None for all.
    """
    if size is not None and size < 1:
        raise DataError(f"size = {size}: pictures need at least 1 pixel.")
    splits = labelled_entry(name, root).load(Request(name, root or data_directory(), size, seed, progress))
    return splits if per_class is None else splits._replace(train=few(splits.train, per_class, seed))


def labelled_entry(name: str, root: Path | None = None) -> LabelledEntry:
    """The data set of that name; what looks like the path of a folder is a user's own."""
    for entry in LABELLED:
        if entry is not OWN and (name == entry.name or (entry is GLYPHS and name.startswith("glyphs:"))):
            return entry
    if is_own(name, root):
        return OWN
    names = ", ".join(entry.name for entry in LABELLED if entry is not OWN)
    raise DataError(f"labelled data set {printable(name)!r}: unknown. Choose one of {names}, or folder:PATH.")


def is_own(name: str, root: Path | None) -> bool:
    """Whether a user's folder is meant; the names of data sets come first."""
    return all(name != entry.name for entry in LABELLED if entry is not OWN) and is_path(name, root)


def is_parted(name: str, root: Path | None) -> bool:
    """Whether it is a user's folder with parts of its own, which serves no episodes."""
    return entry_of(name, root) is FOLDER and has_parts(own_folder(name, root))


def only_labelled(name: str) -> bool:
    """Whether it names a data set that has no classes set aside, and so none for episodes."""
    return any(name == entry.name for entry in LABELLED if entry.name not in {other.name for other in ENTRIES})


def _official(official: Official, request: Request) -> LabelledSplits:
    root = directory_for(official.name, official.source, request.root)
    return load_official(official, root, request.size, request.seed, request.progress)


def _characters(request: Request) -> LabelledSplits:
    scripts = [script for script in request.name.partition(":")[2].split(",") if script]
    return load_characters(scripts, request.size)


def _own(request: Request) -> LabelledSplits:
    return load_own(own_folder(request.name, request.root), request.size, request.seed, request.progress)


def _entry(official: Official, summary: str, licence: str) -> LabelledEntry:
    parts = "{:,} train, {:,} val, {:,} test".format(*official.sizes)
    load = partial(_official, official)
    return LabelledEntry(official.name, summary, licence, official.source, parts, load, official.find)


RESEARCH = "non-commercial research and education"
GLYPHS = LabelledEntry(
    name="glyphs",
    summary="105 letters of the Cyrillic and Greek scripts (glyphs:SCRIPT,… for others, glyphs:all), 28x28",
    licence="free (drawn from the DejaVu fonts)",
    source="comes with metastep",
    parts="15 train, 2 val, 3 test drawings of each",
    load=_characters,
    embedded=True,
)
OWN = LabelledEntry(
    name="folder",
    summary="your own pictures, one sub-folder per class, below train/, val/ and test/ or split for you; 256x256",
    licence="yours",
    source="any folder: name it as folder:PATH, or by its path",
    parts="60 % train, 20 % val, 20 % test of each class",
    load=_own,
)
LABELLED = (
    LabelledEntry(
        name="digits",
        summary="1,797 handwritten digits of 8x8, made 28x28, for few labels per class",
        licence="CC BY 4.0 (E. Alpaydin and C. Kaynak, UCI)",
        source="comes with metastep",
        parts="400 train, 200 val, 1,197 test",
        load=lambda request: load_digits(request.size, request.seed),
        embedded=True,
    ),
    GLYPHS,
    _entry(STL10, "10 classes of photos, 96x96 made 32x32", "research; pictures from ImageNet"),
    _entry(CIFAR100, "100 classes of photos, 32x32", "none stated; cite Krizhevsky 2009"),
    _entry(
        TINY_IMAGENET, "200 ImageNet classes, 64x64 made 32x32; to train source networks on", f"ImageNet: {RESEARCH}"
    ),
    _entry(CUB200, "200 species of birds, 256x256", RESEARCH),
    _entry(INDOOR67, "67 kinds of rooms, 256x256", "research; pictures by their owners"),
    _entry(STANFORD40, "40 human actions, 256x256", "research; pictures by their owners"),
    _entry(STANFORD_DOGS, "120 breeds of dogs, 256x256", f"ImageNet: {RESEARCH}"),
    OWN,
)
