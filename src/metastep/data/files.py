"""Files on disk, read with care: no hanging on pipes or link loops, no surprise of a gigabyte in memory."""

import errno
import gzip
import hashlib
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep.data.errors import problem

ASSETS = Path(__file__).parent / "assets"  # data sets that come with metastep
END_BYTES = 4096
MAX_FILE_BYTES = 256 * 2**20  # a picture or a small table; anything larger is a mistake or an attack


def read_bytes(path: Path) -> bytes:
    """The bytes of one ordinary file of sensible size."""
    try:
        if not path.is_file():
            raise problem(path, "is not an ordinary file (a broken link? a pipe?)", "Remove or replace it")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise problem(path, f"is larger than {MAX_FILE_BYTES >> 20} MiB", "Make it smaller")
        return path.read_bytes()
    except OSError as error:
        raise problem(path, f"cannot be read ({error.strerror})", "Check its permissions") from error


def read_pack(path: Path, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The named arrays of a packed data set: one .npz of arrays, never of pickled objects."""
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
    """Whether there is something here that can be reached; unlike Path's own, never an error."""
    return os.path.exists(path)


def first_existing(root: Path, names: Sequence[str]) -> tuple[Path, ...]:
    """The first of these below `root` that is there, alone; else nothing."""
    return tuple(root / name for name in names if exists(root / name))[:1]


def is_clutter(name: str) -> bool:
    """Files and folders that operating systems leave behind, and hidden ones."""
    parts = PurePath(name).parts
    return any(part.startswith(".") or part in ("__MACOSX", "Thumbs.db", "desktop.ini") for part in parts)


def entries(folder: Path) -> list[Path]:
    """What lies in a folder, sorted by name, without clutter."""
    try:
        # Listing would work, but every question about a file would fail.
        if folder.exists() and not os.access(folder, os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return sorted(entry for entry in folder.iterdir() if not is_clutter(entry.name))
    except OSError as error:
        raise problem(folder, f"cannot be listed ({error.strerror})", "Check the path and its permissions") from error


def files_under(folder: Path, seen: set[tuple[int, int]] | None = None) -> Iterator[Path]:
    """All ordinary files below a folder, sorted; links are followed, but no folder is entered twice."""
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
    """The same for every path and link that leads to this folder."""
    try:
        status = folder.stat()
    except OSError as error:
        raise problem(folder, f"cannot be opened ({error.strerror})", "Check the path") from error
    return status.st_dev, status.st_ino


def contents(folder: Path) -> str:
    """Changes when a file below the folder comes, goes or changes; the same wherever the folder lies.

    Of a file, its name, its size and its end, which hardly two pictures share: reading all takes too long.
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
    """Changes when the file, or any file in the folder, changes: for caches, not for security."""
    digest = hashlib.sha256()
    for file in files_under(path) if path.is_dir() else [path]:
        status = file.stat()
        digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()
