"""What is wrong with a folder of classes: everything at once, so that it can be put right in one go."""

import hashlib
from collections.abc import Iterable
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


def check_folder(path: Path, *, progress: Progress = silent) -> list[Finding]:
    """Everything that would stop the loaders, or spoil what is learned from it; empty when all is well."""
    require_folder(path)
    first_with: dict[str, Path] = {}  # content hash -> the first file that has it
    if lone := lone_half(path):
        return [_raised("misplaced", lone, alone(lone)), *_check_classes(lone, first_with, progress)]
    folders = class_folders(path)
    unread = _beside_parts(path) if folders != [path] else []
    return unread + [finding for folder in folders for finding in _check_classes(folder, first_with, progress)]


def usable_pictures(path: Path, findings: Iterable[Finding]) -> dict[str, int]:
    """Of each class, by name: what is left when everything that was found is removed."""
    found = {finding.path for finding in findings}
    classes = [entry for entry in entries(path) if entry.is_dir() and entry not in found]
    return {folder.name: sum(file not in found for file in entries(folder)) for folder in classes}


def _beside_parts(path: Path) -> list[Finding]:
    """Folders that nobody reads, such as valid/ where val/ was meant."""
    strange = [entry for entry in entries(path) if entry.is_dir() and entry.name not in PARTS]
    reason = f"is none of {', '.join(PARTS)}, and is not read: rename or move it"
    return [_finding("misplaced", entry, reason) for entry in strange]


def _check_classes(path: Path, first_with: dict[str, Path], progress: Progress) -> list[Finding]:
    findings: list[Finding] = []
    found = entries(path)
    if not any(entry.is_dir() for entry in found):
        findings.append(_finding("empty", path, "has no class folders: put each class in a sub-folder"))
    for done, entry in enumerate(found, start=1):
        if not entry.is_dir():
            findings.append(_finding("misplaced", entry, "lies outside the class folders: move or remove it"))
        elif _loops(entry, path):
            findings.append(_finding("link loop", entry, "is a link to a folder that contains it: remove it"))
        else:
            findings += _check_class(entry, first_with)
        progress(done, len(found))
    return findings


def _check_class(folder: Path, first_with: dict[str, Path]) -> list[Finding]:
    try:
        files = entries(folder)
    except DataError as error:
        return [_raised("unreadable", folder, error)]
    if not files:
        return [_finding("empty", folder, "has no pictures: fill or remove it")]
    return [finding for file in files if (finding := _check_file(file, folder, first_with))]


def _check_file(file: Path, folder: Path, first_with: dict[str, Path]) -> Finding | None:
    if file.is_dir():
        if _loops(file, folder):
            return _finding("link loop", file, "is a link to a folder that contains it: remove it")
        return _finding("misplaced", file, "is a folder inside a class folder: move its pictures up")
    try:
        data = read_bytes(file)
        open_picture(data, file, smallest=1)
    except DataError as error:
        return _raised("unreadable", file, error)
    twin = first_with.setdefault(hashlib.sha256(data).hexdigest(), file)
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
