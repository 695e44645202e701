"""Find everything that is wrong with a folder of classes at once, and say what a data set could serve.

A folder is refused here by the code, and so in the words, by which a run refuses it.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from metastep.data.draw import Batches
from metastep.data.episodes import Episodes, require_enough
from metastep.data.errors import DataError, Progress, printable, silent
from metastep.data.files import entries, folder_identity, read_bytes
from metastep.data.folder import (
    CHANNELS,
    Files,
    Folder,
    alone,
    class_folders,
    classes_of,
    has_parts,
    labelled_in,
    lone_half,
    pictures_of,
    require_folder,
    several_classes,
)
from metastep.data.images import Look, look_at, open_picture
from metastep.data.pictures import PARTS, Labelled, Part, Pictures, known_split
from metastep.data.registry import DataSet
from metastep.errors import MetastepError

Kind = Literal["unreadable", "duplicate", "empty", "misplaced", "link loop"]


@dataclass(frozen=True)
class Finding:
    """Describe one thing to fix."""

    kind: Kind
    path: Path
    reason: str
    """Say what is wrong and what to do, in one or two sentences."""

    @property
    def message(self) -> str:
        return f"{printable(self.path)}: {self.reason}"


@dataclass
class Checked:
    """Hold what was found in a folder of classes. Each folder is listed once, and each file read once."""

    findings: list[Finding] = field(default_factory=list)
    listed: dict[Path, list[Path]] = field(default_factory=dict)
    first_with: dict[str, Path] = field(default_factory=dict)  # content hash -> the first file that has it

    def left(self, folder: Path) -> list[Path]:
        """Return what is left in a folder when everything that was found is removed."""
        found = {finding.path for finding in self.findings}
        return [entry for entry in self.listed[folder] if entry not in found]

    def usable_pictures(self, path: Path) -> dict[str, int]:
        """Return how many pictures are left of each class."""
        return {folder.name: len(self.left(folder)) for folder in self.left(path) if folder.is_dir()}

    def note(self, kind: Kind, path: Path, reason: str | DataError) -> None:
        own = isinstance(reason, str)
        said = printable(f"{reason}.") if own else str(reason).removeprefix(f"{printable(path)}: ")
        self.findings.append(Finding(kind, path, said))

    def entries(self, folder: Path) -> list[Path]:
        self.listed[folder] = entries(folder)
        return self.listed[folder]

    def classes(self, path: Path, progress: Progress) -> None:
        found = self.entries(path)
        if not any(entry.is_dir() for entry in found):
            self.note("empty", path, "has no class folders: put each class in a sub-folder")
        for done, entry in enumerate(found, start=1):
            if not entry.is_dir():
                self.note("misplaced", entry, "lies outside the class folders: move or remove it")
            elif _loops(entry, path):
                self.note("link loop", entry, "is a link to a folder that contains it: remove it")
            else:
                self.one_class(entry)
            progress(done, len(found))

    def one_class(self, folder: Path) -> None:
        try:
            files = self.entries(folder)
        except DataError as error:
            self.note("unreadable", folder, error)
        else:
            if not files:
                self.note("empty", folder, "has no pictures: fill or remove it")
            for file in files:
                self.file(file, folder)

    def file(self, file: Path, folder: Path) -> None:
        if file.is_dir() and _loops(file, folder):
            self.note("link loop", file, "is a link to a folder that contains it: remove it")
        elif file.is_dir():
            self.note("misplaced", file, "is a folder inside a class folder: move its pictures up")
        else:
            self.picture(file, folder)

    def picture(self, file: Path, folder: Path) -> None:
        try:
            data = read_bytes(file)
            open_picture(data, file, smallest=1)
        except DataError as error:
            self.note("unreadable", file, error)
        else:
            twin = self.first_with.setdefault(hashlib.sha256(data).hexdigest(), file)
            if twin != file:
                where = _relation(twin.parent, folder)
                self.note("duplicate", file, f"has the same content as {twin}, in {where}; remove one")


def check_folder(path: Path, *, progress: Progress = silent) -> Checked:
    """Find everything that would stop the loaders or spoil what is learned."""
    require_folder(path)
    checked, lone, folders = Checked(), lone_half(path), class_folders(path)
    if lone:
        checked.note("misplaced", lone, alone(lone))
    elif folders != [path]:  # such as valid/ where val/ was meant
        strange = [entry for entry in entries(path) if entry.is_dir() and entry.name not in PARTS]
        for entry in strange:
            checked.note("misplaced", entry, f"is none of {', '.join(PARTS)}, and is not read: rename or move it")
    for folder in [lone] if lone else folders:
        checked.classes(folder, progress)
    return checked


def _relation(other: Path, folder: Path) -> str:
    if other == folder:
        return "the same class"
    if other.name == folder.name:
        return "another part: what is tested was seen in training"
    return "another class: its label contradicts itself"


def _loops(entry: Path, container: Path) -> bool:
    """Return whether entering `entry` would lead back to a folder on the path to it."""
    target = folder_identity(entry)
    way = container.resolve()
    return any(folder_identity(parent) == target for parent in (way, *way.parents))


# ---- what it could serve: splits with episodes, or pictures and batches for transfer


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
