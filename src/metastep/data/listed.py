"""Photos that lists assign to the training and the test part, read from folders or straight from archives."""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from PIL.Image import Resampling

from metastep.data.archives import read_members
from metastep.data.cache import Arrays
from metastep.data.errors import problem
from metastep.data.files import exists
from metastep.data.images import open_picture, to_pixels
from metastep.data.official import arrays_of
from metastep.data.pictures import Pixels
from metastep.data.progress import Progress, counted

ClassOf = Callable[[str], str]


def folder_of(name: str) -> str:
    """The class of "class/file"."""
    return name.partition("/")[0]


def find_parts(root: Path, folders: Sequence[str], *parts: Sequence[str]) -> tuple[Path, ...]:
    """In the first folder that has one of the names of every part: those; else nothing."""
    for folder in (root / name for name in folders):
        found = [next((folder / name for name in names if exists(folder / name)), None) for names in parts]
        if None not in found:
            return tuple(path for path in found if path is not None)
    return ()


def read_listed(
    path: Path, train: Sequence[str], test: Sequence[str], class_of: ClassOf, size: int, progress: Progress
) -> Arrays:
    """Pictures sorted by class and file, as published indices count them.

    train, test: the last parts of the pictures' paths, as many parts for each.
    """
    names = sorted({class_of(name) for name in train})
    if strange := {class_of(name) for name in test}.symmetric_difference(names):
        raise problem(path, f"the class {min(strange)} is not in both lists", "Get the lists again")
    ordered = [sorted(part, key=lambda name: (class_of(name), name)) for part in (train, test)]
    pictures = read_pictures(path, [*ordered[0], *ordered[1]], size, progress)
    labels = [np.array([names.index(class_of(name)) for name in part], np.int64) for part in ordered]
    return arrays_of((pictures[: len(train)], labels[0]), (pictures[len(train) :], labels[1]), names)


def read_pictures(path: Path, names: Sequence[str], size: int, progress: Progress) -> Pixels:
    """The named pictures in that order, in colour, stretched to (pictures, 3, size, size)."""
    place = {name: i for i, name in enumerate(names)}
    parts = names[0].count("/") + 1 if names else 1

    def key(member: str) -> str:
        return "/".join(PurePosixPath(member).parts[-parts:])

    images, absent = np.empty((len(names), 3, size, size), np.uint8), set(names)
    members = read_members(path, keep=lambda member: key(member) in place)
    for member, data in counted(members, len(names), progress):
        picture = open_picture(data, f"{path}/{member}", smallest=size)
        images[place[key(member)]] = to_pixels(picture, size, 3, Resampling.BILINEAR)
        absent.discard(key(member))
    if absent or len(place) != len(names):
        reason = f"lacks {len(absent):,} of the {len(names):,} listed pictures, {min(absent, default='none')} for one"
        raise problem(path, reason, "Get them again")
    return images
