"""Read files, folders and archives with care: no hanging on pipes or link loops, no gigabyte in memory by surprise.

Zip and tar archives and folders are read alike, without unpacking them to disk.
"""

import errno
import gzip
import hashlib
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep.data.errors import problem

ASSETS = Path(__file__).parent / "assets"  # data sets that come with metastep
END_BYTES = 4096
MAX_FILE_BYTES = 256 * 2**20  # a picture or a small table; anything larger is a mistake or an attack


def read_bytes(path: Path) -> bytes:
    """Return the bytes of one ordinary file of sensible size."""
    try:
        if not path.is_file():
            raise problem(path, "is not an ordinary file (a broken link? a pipe?)", "Remove or replace it")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise problem(path, f"is larger than {MAX_FILE_BYTES >> 20} MiB", "Make it smaller")
        return path.read_bytes()
    except OSError as error:
        raise problem(path, f"cannot be read ({error.strerror})", "Check its permissions") from error


def read_pack(path: Path, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the named arrays of a packed data set: one .npz of arrays, never of pickled objects."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as pack:
            return {key: pack[key] for key in keys}
    except KeyError as error:
        raise problem(path, f"is another kind of pack ({error})", "Check the file") from error
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error, TypeError) as error:
        raise problem(path, f"is no .npz pack, or it is cut short ({error})", "Copy it again") from error


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an array of bytes in MNIST's format, packed or not: a magic number, its sizes, its bytes."""
    try:
        data = read_bytes(path)
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        magic, *sizes = struct.unpack_from(f">{1 + dimensions}I", data)
        if magic != 0x0800 + dimensions:
            raise ValueError(f"it begins with {magic}")
        return np.frombuffer(data, np.uint8, offset=4 * (1 + dimensions)).reshape(sizes)
    except (OSError, EOFError, zlib.error, struct.error, ValueError) as error:
        raise problem(path, f"is no idx file, or it is cut short ({error})", "Get it again") from error


def exists(path: Path) -> bool:
    """Return whether a path exists and can be reached; unlike Path's own, never an error."""
    return os.path.exists(path)


def first_existing(root: Path, names: Sequence[str]) -> tuple[Path, ...]:
    """Return the first of these that exists below `root`, or nothing."""
    return tuple(root / name for name in names if exists(root / name))[:1]


def find_parts(root: Path, folders: Sequence[str], parts: Sequence[Sequence[str]]) -> tuple[Path, ...]:
    """Return one of the names of every part, in the first folder that has them all; else nothing."""
    for folder in folders:
        found = [path for names in parts for path in first_existing(root / folder, names)]
        if len(found) == len(parts):
            return tuple(found)
    return ()


def is_clutter(name: str) -> bool:
    """Return whether it is hidden, or left by an operating system."""
    parts = PurePath(name).parts
    return any(part.startswith(".") or part in ("__MACOSX", "Thumbs.db", "desktop.ini") for part in parts)


def entries(folder: Path) -> list[Path]:
    """Return the contents of a folder, sorted by name, without clutter."""
    try:
        # Listing would work, but every question about a file would fail.
        if folder.exists() and not os.access(folder, os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return sorted(entry for entry in folder.iterdir() if not is_clutter(entry.name))
    except OSError as error:
        raise problem(folder, f"cannot be listed ({error.strerror})", "Check the path and its permissions") from error


def files_under(folder: Path, seen: set[tuple[int, int]] | None = None) -> Iterator[Path]:
    """Return all ordinary files below a folder, sorted. Links are followed; no folder is entered twice."""
    seen = set() if seen is None else seen
    identity = folder_identity(folder)
    if identity in seen:
        raise problem(folder, "leads to a folder that was already read: a loop of links", "Remove the link")
    seen.add(identity)
    for entry in entries(folder):
        if entry.is_dir():
            yield from files_under(entry, seen)
        elif entry.is_file():
            yield entry
        else:
            raise problem(entry, "is neither a file nor a folder (a broken link?)", "Remove it")


def folder_identity(folder: Path) -> tuple[int, int]:
    """Return a key that is equal for every path and link to this folder."""
    try:
        status = folder.stat()
    except OSError as error:
        raise problem(folder, f"cannot be opened ({error.strerror})", "Check the path") from error
    return status.st_dev, status.st_ino


def contents(folder: Path) -> str:
    """Return a fingerprint of the files below a folder, the same wherever the folder is.

    It covers name, size and last bytes of each file, which hardly two pictures share. Reading all takes too long.
    """
    digest = hashlib.sha256()
    for file in files_under(folder):
        name = file.relative_to(folder).as_posix().encode(errors="surrogateescape")
        digest.update(b"%b\0%d\0%b\0" % (name, file.stat().st_size, _end_of(file)))
    return digest.hexdigest()[:16]


def _end_of(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - END_BYTES))
            return opened.read(END_BYTES)
    except OSError as error:
        raise problem(file, f"cannot be read ({error.strerror})", "Check its permissions") from error


def fingerprint(path: Path) -> str:
    """Return a key that changes with the file, or any file in the folder: for caches, not for security."""
    digest = hashlib.sha256()
    for file in files_under(path) if path.is_dir() else [path]:
        status = file.stat()
        digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


# ---- folders and archives


Keep = Callable[[str], bool]
_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    NotImplementedError,
    UnicodeError,
)


def read_members(path: Path, keep: Keep = lambda name: True) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of each file to keep, in the order that is cheapest to read.

    Names have forward slashes and no leading part. One at a time, because archives can be larger than memory.
    """
    if not path.exists():
        raise problem(path, "does not exist", "Check the path")
    if path.is_dir():
        yield from _from_folder(path, keep)
        return
    try:
        if zipfile.is_zipfile(path):
            yield from _from_zip(path, keep)
        elif tarfile.is_tarfile(path):
            yield from _from_tar(path, keep)
        else:
            raise problem(path, "is no folder, zip or tar, or it is cut short", "Download it again")
    except _DAMAGE as error:
        raise problem(path, f"is damaged or cut short ({error})", "Download it again") from error


def read_named(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Return files by their path inside a folder; in an archive they may be deeper. All must exist."""
    if path.is_dir():
        return {name: read_bytes(path / name) for name in names}
    found: dict[str, bytes] = {}
    for member, data in read_members(path, keep=lambda member: _ending(member, names) is not None):
        found[_ending(member, names) or ""] = data
    if absent := [name for name in names if name not in found]:
        raise problem(path, f"lacks {', '.join(absent)}", "Get it again")
    return found


def member_names(path: Path) -> list[str]:
    """Return the names of all files without reading them."""
    names: list[str] = []

    def note(name: str) -> bool:
        names.append(name)
        return False

    for _ in read_members(path, keep=note):
        pass
    return names


def _ending(member: str, names: Collection[str]) -> str | None:
    return next((name for name in names if f"/{member}".endswith(f"/{name}")), None)


def _from_folder(folder: Path, keep: Keep) -> Iterator[tuple[str, bytes]]:
    for file in files_under(folder):
        name = file.relative_to(folder).as_posix()
        if keep(name):
            yield name, read_bytes(file)


def _from_zip(path: Path, keep: Keep) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            # Only Unix records a file type here; other systems leave zeros.
            kind = stat.S_IFMT(member.external_attr >> 16)
            name = _safe_name(path, member.filename, kind in (0, stat.S_IFREG, stat.S_IFDIR))
            if member.flag_bits & 1:
                raise problem(path, f"member {name!r} is encrypted", "Unpack it with its password first")
            if not member.is_dir() and _wanted(path, name, member.file_size, keep):
                yield name, archive.read(member)


def _from_tar(path: Path, keep: Keep) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        for member in archive:
            name = _safe_name(path, member.name, member.isreg() or member.isdir())
            content = archive.extractfile(member) if _wanted(path, name, member.size, keep) else None
            if content is not None:  # None for folders
                yield name, content.read()
        _check_tar_end(path, archive)


def _check_tar_end(path: Path, archive: tarfile.TarFile) -> None:
    """Require the zeros at the end of a tar: one that was cut between two members looks complete otherwise."""
    source = archive.fileobj
    if source is not None:
        source.seek(archive.offset)
        if len(source.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
            raise problem(path, "is cut short: its end mark is missing", "Download it again")
        while source.read(tarfile.RECORDSIZE):  # to the very end, where compressed files keep their checksum
            pass


def _safe_name(path: Path, name: str, ordinary: bool) -> str:
    """Return the member's name with forward slashes, if unpacking could only write inside the folder."""
    parsed = PureWindowsPath(name)  # knows both kinds of slash, and drives
    if parsed.anchor or parsed.drive or ".." in parsed.parts:
        raise problem(path, f"member {name!r} points outside the archive", "Do not use this archive")
    if not ordinary:
        raise problem(path, f"member {name!r} is a link or a device", "Pack plain files and folders only")
    return parsed.as_posix()


def _wanted(path: Path, name: str, size: int, keep: Keep) -> bool:
    if is_clutter(name) or not keep(name):
        return False
    if size > MAX_FILE_BYTES:
        reason = f"member {name!r} unpacks to more than {MAX_FILE_BYTES >> 20} MiB"
        raise problem(path, reason, "Do not use this archive")
    return True
