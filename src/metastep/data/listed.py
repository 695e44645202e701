"""Photos that lists assign to the training and the test part, read from folders or straight from archives."""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from metastep.data.archives import read_members, read_named
from metastep.data.cache import Arrays
from metastep.data.errors import problem
from metastep.data.files import exists, read_bytes
from metastep.data.images import ToPixels, empty, open_picture, stretched
from metastep.data.official import arrays_of
from metastep.data.pictures import Pixels
from metastep.data.progress import Progress, counted

ClassOf = Callable[[str], str]


def folder_of(name: str) -> str:
    """Return the class of "class/file"."""
    return name.partition("/")[0]


def find_parts(root: Path, folders: Sequence[str], *parts: Sequence[str]) -> tuple[Path, ...]:
    """Return one of the names of every part, in the first folder that has them; else nothing."""
    for folder in (root / name for name in folders):
        found = [next((folder / name for name in names if exists(folder / name)), None) for names in parts]
        if None not in found:
            return tuple(path for path in found if path is not None)
    return ()


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
    """The named pictures in that order, in colour, (pictures, 3, size, size)"""
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
