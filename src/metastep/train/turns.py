"""Several runs in one process: each pauses where it would wait for the device, and the others go on meanwhile.

On a GPU each has a stream of its own, so that steps too small to fill the card fill it together. Nothing else is
shared: all that a run does on the device, from its first tensor to its last, is in the order of its own stream.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Generic, ParamSpec, Protocol, TypeVar

import torch

from metastep.train.progress import one_display
from metastep.train.stop import stop_on_signals

Given = ParamSpec("Given")
Result = TypeVar("Result")

Turns = Generator[None, int, Result]
"""Work that pauses now and then; each time it goes on, it is sent how many others are under way"""

IDLE = 1e-4  # seconds between two looks whether the device is through with any of them


def run_alone(work: Callable[Given, Turns[Result]]) -> Callable[Given, Result]:
    """The same to its end, with nothing beside it; what `train_in_turns` is then called is `train`"""

    @wraps(work)
    def whole(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        turns = work(*args, **kwargs)
        try:
            next(turns)
            while True:
                turns.send(0)
        except StopIteration as end:
            result: Result = end.value
            return result

    whole.__name__ = whole.__qualname__ = work.__name__.removesuffix("_in_turns")
    return whole


class Shared(Protocol):
    """How far a run is"""

    beside: int  # the most other runs that were under way in this process


def others_go_on(at: Shared, settings: Callable[[], object]) -> Turns[None]:
    """`settings` makes those of the whole process again: others may have left theirs"""
    at.beside = max(at.beside, (yield))
    settings()


def together(works: Iterable[Turns[Result]], places: int) -> Iterator[Result]:
    """Keep up to `places` of them under way, and hand over what each returns, as it ends.

    A place that is free is taken by the next of `works`, which is asked for only then, and no more once a signal asked
    to stop. What one of them raises ends all. For the others to go on, it must return its failure instead.
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


def _stream(places: int) -> torch.cuda.Stream | None:
    return torch.cuda.Stream() if places > 1 and torch.cuda.is_available() else None  # type: ignore[no-untyped-call]


class _UnderWay(Generic[Result]):
    """Work in its place"""

    result: Result

    def __init__(self, turns: Turns[Result], stream: torch.cuda.Stream | None) -> None:
        self._turns, self.stream = turns, stream
        self._queued: torch.cuda.Event | None = None
        self._begun = False

    @property
    def ready(self) -> bool:
        """Whether the device has made all that was queued"""
        return self._queued is None or bool(self._queued.query())  # type: ignore[no-untyped-call]

    def ends(self, others: int) -> bool:
        """Let it go on to its next pause; whether it came to its end instead"""
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
    """In turn, but without waiting for one while another one could go on"""
    while True:
        for _ in range(len(under_way)):
            under_way.rotate(-1)
            if under_way[-1].ready:
                return under_way[-1]
        time.sleep(IDLE)
