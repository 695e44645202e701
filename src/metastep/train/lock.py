"""One writer at a time: an advisory lock that the system itself drops when its holder dies, however it dies."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from metastep.train.errors import LockError, problem
from metastep.train.io import explained, itself


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; refuse if any process holds it, this one included.

    The file stays when the lock is released: removing it could take it from under a process that has just opened it.
    """
    with explained(path, "locked", LockError):
        descriptor = itself(str(path), os.O_RDWR | os.O_CREAT)
    try:
        with explained(path, "locked", LockError):
            _acquire(descriptor, path)
            _sign(descriptor)
        yield
    finally:
        os.close(descriptor)  # and with it the lock


def _acquire(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as cause:
        reason = f"{_holder(descriptor)} is writing this run"
        raise problem(LockError, path, reason, "Wait until it ends, stop it, or choose another folder") from cause


def _sign(descriptor: int) -> None:
    """The name is for people alone: the lock is the kernel's, so a name left by a dead process locks nothing."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)


def _holder(descriptor: int) -> str:
    try:
        signed = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {signed['pid']} on {signed['host']}"
    except (ValueError, KeyError, TypeError):  # it has the lock, and has not signed yet
        return "another process"
