"""Several runs in one process: each pauses where it would wait for the device, and the others continue meanwhile.

On a GPU each run has a CUDA stream of its own, so that steps too small to fill the card fill it together. The
runs share nothing else: all work of a run on the device, from first tensor to last, is in the order of its stream.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Generic, TypeVar

import torch
from rich.console import Console

from metastep.train.progress import Display, shared_display
from metastep.train.stop import stop_on_signals
from metastep.train.turns import Turns

Result = TypeVar("Result")

IDLE = 1e-4  # seconds between two checks whether the device has finished the work of any run


def together(works: Iterable[Turns[Result]], places: int) -> Iterator[Result]:
    """Run up to `places` of them at a time, and yield what each returns, as it ends.

    The next of `works` is asked for when a place is free, and not after a signal to stop. An exception in one of them
    ends all. To let the others continue, return the failure instead.
    """
    waiting, free = iter(works), [_stream(places) for _ in range(places)]
    under_way: deque[_UnderWay[Result]] = deque()
    with stop_on_signals() as stop, one_display() if places > 1 else nullcontext():
        try:
            while True:
                while free and not stop.requested and (work := next(waiting, None)) is not None:
                    under_way.append(_UnderWay(work, free.pop()))
                if not under_way:
                    return
                each = _next_ready(under_way)
                if each.ends(len(under_way) - 1):
                    under_way.remove(each)
                    free.append(each.stream)
                    yield each.result
        finally:
            for each in under_way:
                each.close()


@contextmanager
def one_display(console: Console | None = None) -> Iterator[None]:
    """Make every `Progress` inside a line, with its name, of one display: a terminal has room for one at a time."""
    display = Display(console or Console(stderr=True), named=True)
    before = shared_display.set(display)
    display.open()
    try:
        yield
    finally:
        display.close()
        shared_display.reset(before)


def _stream(places: int) -> torch.cuda.Stream | None:
    return torch.cuda.Stream() if places > 1 and torch.cuda.is_available() else None  # type: ignore[no-untyped-call]


class _UnderWay(Generic[Result]):
    """Work that has been started, with its stream."""

    result: Result

    def __init__(self, turns: Turns[Result], stream: torch.cuda.Stream | None) -> None:
        self._turns, self.stream = turns, stream
        self._queued: torch.cuda.Event | None = None
        self._begun = False

    @property
    def ready(self) -> bool:
        """Whether the device has finished everything that was queued."""
        return self._queued is None or bool(self._queued.query())  # type: ignore[no-untyped-call]

    def ends(self, others: int) -> bool:
        """Continue to the next pause. Return whether the work ended instead."""
        with self._place():
            try:
                self._turns.send(others) if self._begun else next(self._turns)
            except StopIteration as end:
                self.result = end.value
                return True
            self._begun, self._queued = True, self.stream.record_event() if self.stream else None
        return False

    def close(self) -> None:
        with self._place():
            self._turns.close()

    def _place(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self.stream) if self.stream else nullcontext()


def _next_ready(under_way: deque[_UnderWay[Result]]) -> _UnderWay[Result]:
    """Return the next in turn whose work on the device is done; never wait for one while another is ready."""
    while True:
        for _ in range(len(under_way)):
            under_way.rotate(-1)
            if under_way[-1].ready:
                return under_way[-1]
        time.sleep(IDLE)
