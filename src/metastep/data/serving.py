"""Say what a data set could serve: episodes of which splits, or how many pictures and batches for transfer.

A folder is refused here by the code, and so in the words, by which a run refuses it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from metastep.data.batches import Batches
from metastep.data.check import Checked, check_folder
from metastep.data.episodes import Episodes, require_enough
from metastep.data.folder import (
    CHANNELS,
    Files,
    Folder,
    classes_of,
    has_parts,
    labelled_in,
    pictures_of,
    several_classes,
)
from metastep.data.images import Look, look_at
from metastep.data.pictures import Labelled, Pictures
from metastep.data.registry import DataSet
from metastep.data.splits import PARTS, Part, known_split
from metastep.errors import MetastepError

MOST_SHOWN = 30  # pictures of each class of a labelled set that contact sheets choose from


class Served(NamedTuple):
    """What a split has, and whether the episodes can be drawn from it."""

    split: Part
    sizes: Sequence[int]
    """Pictures of each class."""
    shortage: str
    """What is missing for the episodes, and what to do about it; empty where they can be drawn."""


def served_by(data: DataSet, episodes: Episodes, checked: Checked | None = None) -> list[Served]:
    """Return each split of a data set; a user's folder is taken without what was found to be wrong with it."""
    if isinstance(data, Folder):
        sizes = {} if has_parts(data.root) else (checked or check_folder(data.root)).usable_pictures(data.root)
        names = {part: classes_of(list(sizes), part) for part in PARTS}
        classes = {part: (names[part], [sizes[name] for name in names[part]]) for part in PARTS if sizes}
    else:
        read = {part: data.classes(part) for part in PARTS}
        classes = {part: (pictures.names, pictures.sizes) for part, pictures in read.items()}
    return [Served(part, sizes, _shortage(names, sizes, episodes)) for part, (names, sizes) in classes.items()]


def possible(served: Sequence[Served], episodes: Episodes) -> str:
    """Return what all splits could serve where they fall short."""
    wanted = episodes.shots + episodes.queries
    ways = min(sum(size >= wanted for size in each.sizes) for each in served)
    if ways >= 2:
        return f"With {wanted} pictures of each class, every split can serve episodes of up to {ways} classes."
    if min(len(each.sizes) for each in served) < 2:
        return "Every split needs at least two classes: add some."
    pictures = min(sorted(each.sizes)[-2] for each in served)
    return f"With two classes in an episode there are {pictures} pictures of each, for shots and queries together."


def _shortage(names: Sequence[str], sizes: Sequence[int], episodes: Episodes) -> str:
    try:
        require_enough(sizes, episodes, names, shown=len(names))
    except MetastepError as error:
        return str(error)
    return ""


class Outlook(NamedTuple):
    """What a transfer run would learn from, of a folder without what was found to be wrong with it."""

    parts: Labelled  # of pictures without pixels
    looks: list[Look]

    def in_words(self, size: int, batch: int) -> list[str]:
        """Return what the numbers of each class do not tell, a line for each matter."""
        made = f"each is stretched to {size}x{size} pixels (--size) and read in colour"
        return [
            f"pictures: {_kinds(self.looks)}; {made}: the source has to be for colour too",
            f"validation: {self.parts.validation}",
            f"batches: {_batches(self.parts, batch)}",
        ]


def outlook(folder: Path, checked: Checked) -> Outlook | str:
    """Return what a transfer run would learn from, or why it cannot and what to do about it."""
    listed: list[Files] = []

    def without_pixels(part: Path) -> Pictures:
        files = several_classes(part, checked.left)
        listed.append(files)
        return pictures_of(files, np.empty((sum(map(len, files.values())), CHANNELS, 0, 0), np.uint8))

    try:
        parts = labelled_in(folder, 0, without_pixels)
    except MetastepError as error:
        return str(error)
    return Outlook(parts, [look_at(file) for files in listed for row in files.values() for file in row])


def _kinds(looks: list[Look]) -> str:
    smallest, largest = (pick(looks, key=lambda look: look.width * look.height) for pick in (min, max))
    ends = dict.fromkeys(f"{look.width}x{look.height}" for look in (smallest, largest))
    grey = sum(look.is_grey for look in looks)
    kind = "in colour" if not grey else "grey" if grey == len(looks) else f"{grey:,} grey and the others in colour"
    return f"{len(looks):,} of {' to '.join(ends)}, {kind}"


def _batches(parts: Labelled, size: int) -> str:
    number = len(Batches(parts.train, size))
    last = len(parts.train.labels) - (number - 1) * size
    lonely = ", which is too few for the statistics of some nets: choose another --batch" if last == 1 else ""
    return f"{number:,} in an epoch, of up to {size} pictures (--batch), the last of {last}{lonely}"


def preview(data: DataSet, split: str | None) -> tuple[str, str, Pictures]:
    """Return what to call a data set, the split that is meant, and pictures of it to draw episodes from.

    Of a labelled set, and of a user's own train/ and test/, these are a few pictures of each class of one part.
    """
    label = data.root.resolve().name if isinstance(data, Folder) else data.name
    if data.view == "episodes" and not (isinstance(data, Folder) and has_parts(data.root)):
        split = split or ("all" if isinstance(data, Folder) else "train")
        return label, split, data.classes(split)
    part = known_split(split or PARTS[0], PARTS)
    pictures: Pictures = getattr(data.labelled(), part)
    first = [i for label in range(len(pictures.names)) for i in (pictures.labels == label).nonzero()[:MOST_SHOWN, 0]]
    return label, part, pictures.at(list(map(int, first)))


def described(data: DataSet) -> str:
    """Say that all is well with a labelled data set: reading it compares its numbers with those of the paper."""
    parts = data.labelled()
    counts = ", ".join(f"{count:,} {part}" for count, part in zip(parts.counts, PARTS, strict=True))
    return f"{data.name}: all is well: {counts}; validation: {parts.validation}"
