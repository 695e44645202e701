"""The data sets by name: what they are, on what terms, where to get them, and which are here."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from metastep.data.errors import DataError, printable, problem
from metastep.data.files import exists
from metastep.data.folder import load_folder
from metastep.data.pictures import ImageSet
from metastep.data.progress import Progress, silent
from metastep.data.sets import mini_imagenet, omniglot
from metastep.data.sets.glyphs import load_glyphs
from metastep.data.splits import PARTS, SPLITS, Split, known_split


@dataclass(frozen=True)
class Entry:
    """One data set."""

    name: str
    summary: str
    licence: str
    source: str
    """Where to get it."""
    splits: tuple[Split, ...]
    """The splits that it has, the one to show first."""
    read: Callable[[Path, Split, Progress], ImageSet]
    """From the data directory, or a user's folder."""
    locate: Callable[[Path], tuple[Path, ...]]
    """Its files in a data directory; none when it is not, or not wholly, there."""
    embedded: bool = False
    """Whether it comes with metastep, and so needs no data directory."""


def _read_glyphs(root: Path, split: Split, progress: Progress) -> ImageSet:
    del root, progress  # they come with metastep
    return load_glyphs(split)


def _every_mini_imagenet_file(root: Path) -> tuple[Path, ...]:
    found = [mini_imagenet.find_mini_imagenet(root, part) for part in PARTS]
    return tuple(dict.fromkeys(path for paths in found for path in paths)) if all(found) else ()


def _nowhere(root: Path) -> tuple[Path, ...]:
    del root  # glyphs need no files; and guessing which folder is a user's own would mostly be wrong
    return ()


GLYPHS = Entry(
    name="glyphs",
    summary="1,300 characters of 22 scripts, 20 drawings each, 28x28; split by script",
    licence="free (drawn from the DejaVu fonts)",
    source="comes with metastep",
    splits=SPLITS,
    read=_read_glyphs,
    locate=_nowhere,
    embedded=True,
)
OMNIGLOT = Entry(
    name="omniglot",
    summary="1,623 handwritten characters of 50 alphabets, 20 drawings each, 28x28",
    licence="MIT (Brenden Lake)",
    source=omniglot.SOURCE,
    splits=SPLITS,
    read=lambda root, split, progress: omniglot.load_omniglot(root, split, progress),
    locate=omniglot.find_omniglot,
)
MINI_IMAGENET = Entry(
    name="mini_imagenet",
    summary="100 ImageNet classes of 600 photos, 84x84, Ravi-Larochelle split 64/16/20",
    licence="ImageNet: non-commercial research and education",
    source=mini_imagenet.SOURCE,
    splits=PARTS,
    read=lambda root, split, progress: mini_imagenet.load_mini_imagenet(root, split, progress=progress),
    locate=_every_mini_imagenet_file,
)
FOLDER = Entry(
    name="folder",
    summary="your own pictures, one sub-folder per class, resized to 84x84; split by class",
    licence="yours",
    source="any folder: name it as folder:PATH, or by its path",
    splits=("all", "train", "val", "trainval", "test"),
    read=lambda root, split, progress: load_folder(root, split, progress=progress),
    locate=_nowhere,
)
ENTRIES = (GLYPHS, OMNIGLOT, MINI_IMAGENET, FOLDER)
NAMED = {entry.name: entry for entry in ENTRIES if entry is not FOLDER}


def load(name: str, root: Path | None, split: str, progress: Progress = silent) -> ImageSet:
    """A data set by name: glyphs, omniglot, mini_imagenet, or a user's own as folder:PATH or just its path.

    root: the data directory; None takes it from METASTEP_DATA. Glyphs need none; a relative path of a folder that
        does not exist is looked for there too.
    split: train, val or test, which share no class. Except for mini_imagenet also trainval (train and val: choose
        with the two, then train once more on both) and all. Glyphs are split by script, the others by class.
    """
    entry, folder = resolve(name, root)
    return entry.read(folder, known_split(split, entry.splits), progress)


def resolve(name: str, root: Path | None) -> tuple[Entry, Path]:
    """The data set that is meant, and the folder that it is to be read from."""
    entry = entry_of(name, root)
    root = root or data_directory()
    if entry is FOLDER:
        return entry, own_folder(name, root)
    return entry, Path() if entry.embedded else directory_for(entry.name, entry.source, root)


def directory_for(name: str, source: str, root: Path | None) -> Path:
    """The data directory, for a data set that is to be in it; `source` says where to get that"""
    root = root or data_directory()
    if root is None:
        raise DataError(
            f"{name}: where is it? Name the folder that has it with --data or METASTEP_DATA; to get it: {source}."
        )
    if not root.expanduser().is_dir():
        remedy = f"Name the folder that has {name} with --data or METASTEP_DATA; to get it: {source}"
        raise problem(root, "the data directory is not there, or no folder", remedy)
    return root.expanduser()


def entry_of(name: str, root: Path | None = None) -> Entry:
    """The data set of that name; what looks like the path of a folder is a user's own."""
    if name in NAMED:
        return NAMED[name]
    if is_own(name, root):
        return FOLDER
    names = ", ".join(NAMED)
    is_file = name != "" and exists(own_folder(name, root))
    reason = "is a file, and no folder of classes" if is_file else "there is no such folder here"
    raise DataError(
        f"{printable(name)}: {reason}, and no data set of that name. Give the path of a folder, or one of {names}."
    )


def is_own(name: str, root: Path | None) -> bool:
    """Whether a user's folder is meant; the names of data sets come first."""
    return name not in NAMED and is_path(name, root)


def is_path(name: str, root: Path | None) -> bool:
    """Whether a name that is no data set's can be that of a user's folder: it says so, or there is one."""
    return name.startswith("folder:") or "/" in name or (name != "" and os.path.isdir(own_folder(name, root)))


def own_folder(name: str, root: Path | None) -> Path:
    """A user's folder, folder:PATH or just its path: where that says, or else below the data directory."""
    path = Path(os.path.expanduser(name.removeprefix("folder:")))  # unlike Path's own, never an error
    below = (root or data_directory() or Path()).expanduser() / path
    return below if exists(below) and not exists(path) else path


def data_directory() -> Path | None:
    """What METASTEP_DATA names."""
    named = os.environ.get("METASTEP_DATA")
    return Path(named) if named else None


def find(root: Path) -> dict[str, tuple[Path, ...]]:
    """Name -> files, for each data set that a data directory holds."""
    located = {entry.name: entry.locate(root) for entry in ENTRIES}
    return {name: paths for name, paths in located.items() if paths}
