"""Ctrl-C and SIGTERM: a request in a run, which finishes its step, saves, and ends; before a command begins, the end.

Catching KeyboardInterrupt is not enough while modules are imported: the C code of numpy and torch turns it into other
errors, or aborts. This module imports nothing slow, because it comes before everything else.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import FrameType


class Stop:
    """Whether, and by which signal, the run was asked to stop."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._interrupted = False  # by Ctrl-C, whatever came before or after it

    @property
    def requested(self) -> bool:
        return self.signal is not None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        pressed, first = number == signal.SIGINT, not self.requested
        again = pressed and self._interrupted
        self.signal, self._interrupted = signal.Signals(number), self._interrupted or pressed
        if again:
            raise KeyboardInterrupt
        if pressed:
            _say("Stopping after this step. Ctrl-C again stops at once.")
        elif first:  # and not whenever a scheduler repeats itself
            _say("Stopping after this step.")


def _say(line: str) -> None:
    """Straight to the terminal: a handler may run in the middle of any other output"""
    with suppress(OSError):
        os.write(2, f"\n{line}\n".encode())


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Inside, SIGINT and SIGTERM set `.requested`. A second Ctrl-C raises KeyboardInterrupt; SIGTERM never does,
    because schedulers and launchers send it more than once. Outside the main thread nothing is caught.

    Inside another one it is the same: a caller of several loops sees that one of them was asked to stop."""
    outer = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    stop = outer if isinstance(outer, Stop) else Stop()
    if stop is outer:
        yield stop
        return
    with _received_by(stop._receive, signal.SIGINT, signal.SIGTERM):
        yield stop


def terminated_as_interrupted() -> AbstractContextManager[None]:
    """Inside, SIGTERM is as Ctrl-C: a process that waits for a child then ends the child too."""
    return _received_by(signal.default_int_handler, signal.SIGTERM)


@contextmanager
def _received_by(handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # Python delivers there alone
        yield
        return
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, earlier in zip(numbers, before, strict=True):
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)  # None: not set from Python


# ---- before a command begins


Handler = Callable[[int, FrameType | None], None]


def leave_at_ctrl_c() -> AbstractContextManager[None]:
    """End the process at Ctrl-C. A handler that is not Python's default stays: a job may be told to ignore Ctrl-C."""
    return _replaced(signal.default_int_handler, _leave)


def raise_at_ctrl_c() -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt again inside `leave_at_ctrl_c`. Elsewhere, change nothing."""
    return _replaced(_leave, signal.default_int_handler)


def _replaced(before: Handler, handler: Handler) -> AbstractContextManager[None]:
    is_set = signal.getsignal(signal.SIGINT) is before
    return _received_by(handler, signal.SIGINT) if is_set else nullcontext()


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    os._exit(128 + number)
