"""Which episodes a data set can serve: each split must have the classes, and each class the pictures."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from metastep.data.check import Finding, usable_pictures
from metastep.data.episodes import Episodes, require_enough
from metastep.data.folder import classes_of
from metastep.data.own import has_parts
from metastep.data.progress import Progress
from metastep.data.registry import FOLDER, load, resolve
from metastep.data.splits import PARTS, Part
from metastep.errors import MetastepError

Classes = tuple[Sequence[str], Sequence[int]]  # their names, and how many pictures each has


class Served(NamedTuple):
    split: Part
    sizes: Sequence[int]
    """Pictures of each class."""
    shortage: str
    """What is missing for the episodes, and what to do about it; empty where they can be drawn."""


def served_by(
    name: str, root: Path | None, episodes: Episodes, findings: Iterable[Finding], progress: Progress
) -> list[Served]:
    """Each split of a data set; a user's folder is taken without what was found to be wrong with it."""
    entry, folder = resolve(name, root)
    parts = _split(folder, findings) if entry is FOLDER else _read(name, root, progress)
    return [Served(part, sizes, _shortage(names, sizes, episodes)) for part, (names, sizes) in parts.items()]


def possible(served: Sequence[Served], episodes: Episodes) -> str:
    """Where they fall short, what all splits could serve"""
    wanted = episodes.shots + episodes.queries
    ways = min(sum(size >= wanted for size in each.sizes) for each in served)
    if ways >= 2:
        return f"With {wanted} pictures of each class, every split can serve episodes of up to {ways} classes."
    if min(len(each.sizes) for each in served) < 2:
        return "Every split needs at least two classes: add some."
    pictures = min(sorted(each.sizes)[-2] for each in served)
    return f"With two classes in an episode there are {pictures} pictures of each, for shots and queries together."


def _split(folder: Path, findings: Iterable[Finding]) -> Mapping[Part, Classes]:
    if has_parts(folder):
        return {}
    sizes = usable_pictures(folder, findings)
    names = {part: classes_of(list(sizes), part) for part in PARTS}
    return {part: (names[part], [sizes[name] for name in names[part]]) for part in PARTS}


def _read(name: str, root: Path | None, progress: Progress) -> Mapping[Part, Classes]:
    read = {part: load(name, root, part, progress) for part in PARTS}
    return {part: (images.names, images.sizes) for part, images in read.items()}


def _shortage(names: Sequence[str], sizes: Sequence[int], episodes: Episodes) -> str:
    try:
        require_enough(sizes, episodes, names, shown=len(names))
    except MetastepError as error:
        return str(error)
    return ""
