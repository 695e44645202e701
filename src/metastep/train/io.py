"""The one way to write a file: it is there as a whole or not at all, and never written through a symbolic link.

What goes wrong is one message with the file, the reason and the remedy.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import TypeVar

from metastep.errors import MetastepError, remedy_of


class RunError(MetastepError):
    """A run's folder cannot be used as asked."""


class CheckpointError(RunError):
    """A checkpoint cannot be written, or is not one that can be read."""


class ConfigError(RunError):
    """A configuration does not fit its type; the message names the field."""


class LockError(RunError):
    """Another process is writing this run."""


AnyRunError = TypeVar("AnyRunError", bound=RunError)


def problem(error: type[AnyRunError], path: str | PathLike[str], reason: str, remedy: str) -> AnyRunError:
    """An error to raise. The name is quoted: a file's name may hold terminal escapes."""
    return error(f"{str(path)!r}: {reason}. {remedy}.")


@contextmanager
def explained(path: Path, doing: str, error: type[RunError] = RunError, kept: str = "") -> Iterator[None]:
    """An OSError inside becomes `error`: 'cannot be <doing>', the system's reason, <kept>, a remedy."""
    try:
        yield
    except OSError as cause:
        if cause.errno == errno.ELOOP:
            reason = "is a symbolic link, and what it points to is never written to"
            raise problem(error, path, reason, "Remove the link, or choose another folder") from cause
        reason = f"cannot be {doing} ({cause.strerror or cause}){kept}"
        raise problem(error, path, reason, remedy_of(cause, "Check the path and the disk")) from cause


def replace_file(path: Path, data: bytes, error: type[RunError] = RunError) -> None:
    """Write `path` so that after any failure, kill -9 and power cut included, the old or the new content is there."""
    kept = "; what was there before is untouched" if os.path.exists(path) else ""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")  # same folder: a rename must not cross disks
    with explained(path, "written", error, kept):
        try:
            _write_to_disk(partial, data)
            os.replace(partial, path)
        except BaseException:  # a second Ctrl-C too leaves nothing behind
            with suppress(OSError):
                partial.unlink()
            raise
    with suppress(OSError):  # the new file is whole; without this, a power cut may bring the old one back
        _sync_folder(path.parent)


def itself(path: str, flags: int) -> int:
    """Open a file, and not what a symbolic link in its place points to; as `opener` of `open`."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def require_no_link(folder: Path, error: type[RunError] = RunError) -> None:
    """Refuse a symbolic link in the place of a folder that is written into."""
    with explained(folder, "written", error):
        if folder.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _write_to_disk(path: Path, data: bytes) -> None:
    with open(path, "wb", opener=itself) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # before the rename, or a power cut can leave an empty file under the final name


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_partial_files(folder: Path) -> None:
    """Remove what killed writers left. Call it only while holding the folder's lock."""
    for partial in folder.glob(".*.partial"):
        with suppress(OSError):
            partial.unlink()


def read_file(path: Path, error: type[RunError] = RunError) -> bytes:
    with explained(path, "read", error):
        if path.exists() and not path.is_file():  # reading a pipe would wait for ever
            raise problem(error, path, "is not an ordinary file", "Give the path of a file")
        return path.read_bytes()
