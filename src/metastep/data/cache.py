"""Cache computed data between runs: one folder of .npy files per entry, complete or absent."""

import contextlib
import hashlib
import json
import logging
import mmap
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep.data.errors import printable
from metastep.data.files import exists

Arrays = dict[str, NDArray[Any]]

CHECKSUMS = "checksums.json"  # {array: CRC-32 of its file}: says which arrays an entry has, and that they are whole

_log = logging.getLogger(__name__)


def cache_root() -> Path:
    """Return `$METASTEP_CACHE`, else `metastep` in `$XDG_CACHE_HOME`, else in `~/.cache`; it need not exist."""
    if chosen := os.environ.get("METASTEP_CACHE"):
        return Path(chosen).expanduser()
    shared = Path(os.environ.get("XDG_CACHE_HOME") or "")
    # The XDG rules: a relative path there is to be ignored.
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "metastep"


def cached(name: str, key: str, build: Callable[[], Arrays]) -> Arrays:
    """Return what `build` returns; memory-mapped, if it was called with this name and key before."""
    folder = cache_root() / f"{name}-{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()[:16]}"
    found = _load(folder)
    if found is not None:
        return found
    arrays = build()
    try:
        _store(folder, arrays)
    except OSError as error:  # a full or read-only disk costs time on the next run, not this run
        _log.warning(
            "%s cannot be written (%s), so the next run makes it again. Set METASTEP_CACHE to a folder with room.",
            printable(folder),
            error.strerror or error,
        )
        return arrays
    return _load(folder) or arrays


def _load(folder: Path) -> Arrays | None:
    """Return the entry, or None if it is missing or damaged."""
    if not exists(folder):
        return None
    try:
        checksums = json.loads((folder / CHECKSUMS).read_text())
        return {name: _array(folder / f"{name}.npy", checksum) for name, checksum in checksums.items()}
    except Exception as error:  # a damaged entry fails in a dozen ways; building it again repairs them all
        _log.warning("%s is damaged (%s): making it again.", printable(folder), error)
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _array(file: Path, checksum: int) -> NDArray[Any]:
    if _checksum(file) != checksum:
        raise ValueError(f"the checksum of {file.name} is another")
    # "c": writable, as torch wants it, but what is written never reaches the file.
    array: NDArray[Any] = np.load(file, mmap_mode="c", allow_pickle=False)
    return array


def _checksum(file: Path) -> int:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return zlib.crc32(content)


def _store(folder: Path, arrays: Arrays) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder.parent)
    draft = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.parent))
    try:
        _write(draft, arrays)
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process finished the same entry first
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write(draft: Path, arrays: Arrays) -> None:
    for name, array in arrays.items():
        np.save(draft / f"{name}.npy", array, allow_pickle=False)
    checksums = {name: _checksum(draft / f"{name}.npy") for name in arrays}
    (draft / CHECKSUMS).write_text(json.dumps(checksums))


def _remove_abandoned(root: Path) -> None:
    """Remove what killed processes left half-written; a day is longer than any write takes."""
    for draft in root.glob(".writing-*"):
        with contextlib.suppress(OSError):
            if draft.stat().st_mtime < time.time() - 86_400:
                shutil.rmtree(draft, ignore_errors=True)
