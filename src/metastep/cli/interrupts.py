"""Decide what Ctrl-C does: before a command begins, the process ends with status 130 and says nothing.

Catching KeyboardInterrupt is not enough while modules are imported: the C code of numpy and torch turns it into other
errors, or aborts. This module imports nothing slow, because it comes before everything else.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None]


def leave_at_ctrl_c() -> AbstractContextManager[None]:
    """End the process at Ctrl-C. A handler that is not Python's default stays: a job may be told to ignore Ctrl-C."""
    return _replaced(signal.default_int_handler, _leave)


def raise_at_ctrl_c() -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt again inside `leave_at_ctrl_c`. Elsewhere, change nothing."""
    return _replaced(_leave, signal.default_int_handler)


@contextmanager
def _replaced(before: Handler, handler: Handler) -> Iterator[None]:
    if signal.getsignal(signal.SIGINT) is not before:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    os._exit(128 + number)
