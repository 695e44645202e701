"""What is wrong with a folder of classes: everything at once, so that it can be put right in one go."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from metastep.data.errors import DataError, printable
from metastep.data.files import entries, folder_identity, read_bytes
from metastep.data.folder import alone, class_folders, lone_half, require_folder
from metastep.data.images import open_picture
from metastep.data.progress import Progress, silent
from metastep.data.splits import PARTS

Kind = Literal["unreadable", "duplicate", "empty", "misplaced", "link loop"]


@dataclass(frozen=True)
class Finding:
    """One thing to put right."""

    kind: Kind
    path: Path
    reason: str
    """What is wrong and what to do about it, in one sentence or two."""

    @property
    def message(self) -> str:
        return f"{printable(self.path)}: {self.reason}"


@dataclass(frozen=True)
class Checked:
    """What was found in a folder of classes, and what lies in each of its folders."""

    findings: list[Finding]
    listed: dict[Path, list[Path]]

    def left(self, folder: Path) -> list[Path]:
        """Return what is left in a folder when everything that was found is removed."""
        found = {finding.path for finding in self.findings}
        return [entry for entry in self.listed[folder] if entry not in found]

    def usable_pictures(self, path: Path) -> dict[str, int]:
        """Return how many pictures are left of each class."""
        return {folder.name: len(self.left(folder)) for folder in self.left(path) if folder.is_dir()}


def check_folder(path: Path, *, progress: Progress = silent) -> Checked:
    """Find everything that would stop the loaders, or spoil what is learned from it."""
    require_folder(path)
    check = _Check()
    if lone := lone_half(path):
        findings = [_raised("misplaced", lone, alone(lone)), *check.classes(lone, progress)]
        return Checked(findings, check.listed)
    folders = class_folders(path)
    unread = _beside_parts(path) if folders != [path] else []
    findings = unread + [finding for folder in folders for finding in check.classes(folder, progress)]
    return Checked(findings, check.listed)


def _beside_parts(path: Path) -> list[Finding]:
    """Folders that nobody reads, such as valid/ where val/ was meant."""
    strange = [entry for entry in entries(path) if entry.is_dir() and entry.name not in PARTS]
    reason = f"is none of {', '.join(PARTS)}, and is not read: rename or move it"
    return [_finding("misplaced", entry, reason) for entry in strange]


class _Check:
    """One pass: each folder is listed once, each file is read once"""

    def __init__(self) -> None:
        self.listed: dict[Path, list[Path]] = {}
        self.first_with: dict[str, Path] = {}  # content hash -> the first file that has it

    def entries(self, folder: Path) -> list[Path]:
        self.listed[folder] = entries(folder)
        return self.listed[folder]

    def classes(self, path: Path, progress: Progress) -> list[Finding]:
        findings: list[Finding] = []
        found = self.entries(path)
        if not any(entry.is_dir() for entry in found):
            findings.append(_finding("empty", path, "has no class folders: put each class in a sub-folder"))
        for done, entry in enumerate(found, start=1):
            if not entry.is_dir():
                findings.append(_finding("misplaced", entry, "lies outside the class folders: move or remove it"))
            elif _loops(entry, path):
                findings.append(_finding("link loop", entry, "is a link to a folder that contains it: remove it"))
            else:
                findings += self.one_class(entry)
            progress(done, len(found))
        return findings

    def one_class(self, folder: Path) -> list[Finding]:
        try:
            files = self.entries(folder)
        except DataError as error:
            return [_raised("unreadable", folder, error)]
        if not files:
            return [_finding("empty", folder, "has no pictures: fill or remove it")]
        return [finding for file in files if (finding := self.file(file, folder))]

    def file(self, file: Path, folder: Path) -> Finding | None:
        if file.is_dir():
            if _loops(file, folder):
                return _finding("link loop", file, "is a link to a folder that contains it: remove it")
            return _finding("misplaced", file, "is a folder inside a class folder: move its pictures up")
        try:
            data = read_bytes(file)
            open_picture(data, file, smallest=1)
        except DataError as error:
            return _raised("unreadable", file, error)
        twin = self.first_with.setdefault(hashlib.sha256(data).hexdigest(), file)
        if twin == file:
            return None
        where = _relation(twin.parent, folder)
        return _finding("duplicate", file, f"has the same content as {twin}, in {where}; remove one")


def _relation(other: Path, folder: Path) -> str:
    if other == folder:
        return "the same class"
    if other.name == folder.name:
        return "another part: what is tested was seen in training"
    return "another class: its label contradicts itself"


def _loops(entry: Path, container: Path) -> bool:
    """Whether entering `entry` would lead back to a folder on the way to it."""
    target = folder_identity(entry)
    way = container.resolve()
    return any(folder_identity(parent) == target for parent in (way, *way.parents))


def _finding(kind: Kind, path: Path, reason: str) -> Finding:
    return Finding(kind, path, printable(f"{reason}."))


def _raised(kind: Kind, path: Path, error: DataError) -> Finding:
    return Finding(kind, path, str(error).removeprefix(f"{printable(path)}: "))
