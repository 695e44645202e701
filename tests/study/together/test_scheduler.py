"""Works that take turns: who is next, who takes a free place, and what becomes of the others when one fails."""

import signal
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from metastep.train.turns import Turns
from study import together as module
from study.together import together
from tests.train.test_turns import Trace, work


def test_they_take_turns_and_a_free_place_is_taken() -> None:
    trace: Trace = []
    asked: list[str] = []

    def works() -> Iterator[Turns[str]]:
        for name, pauses in (("a", 1), ("b", 3), ("c", 2), ("d", 0)):
            asked.append(name)
            yield work(name, pauses, trace)

    ends = together(works(), 2)
    assert next(ends) == "A"
    assert asked == ["a", "b"]  # there is no room for c until a is out
    assert list(ends) == ["B", "C", "D"]
    assert trace == [("a", 1), ("b", 1), ("b", 1), ("c", 1), ("b", 1), ("c", 1)]


def test_one_place_is_one_after_the_other() -> None:
    trace: Trace = []
    assert list(together((work(name, 2, trace) for name in "ab"), 1)) == ["A", "B"]
    assert trace == [("a", 0), ("a", 0), ("b", 0), ("b", 0)]
    assert list(together(iter(()), 3)) == []


def test_what_one_raises_ends_the_others_where_they_are() -> None:
    ended = []

    def patient() -> Turns[None]:
        try:
            while True:
                yield
        finally:
            ended.append("patient")

    def failing() -> Turns[None]:
        yield
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(together([patient(), failing()], 2))
    assert ended == ["patient"]


def test_asked_to_stop_nothing_more_is_begun() -> None:
    def interrupted() -> Turns[str]:
        yield
        signal.raise_signal(signal.SIGTERM)
        return "interrupted"

    trace: Trace = []
    before = signal.getsignal(signal.SIGTERM)
    works = iter([interrupted(), work("beside it", 3, trace), work("later", 1, trace)])
    assert list(together(works, 2)) == ["interrupted", "BESIDE IT"]
    assert len(trace) == 3
    assert next(works)
    assert signal.getsignal(signal.SIGTERM) is before


class Event:
    """Of a device that is through after so many looks"""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def query(self) -> bool:
        self._looks -= 1
        return self._looks < 0


class Stream:
    current: "Stream | None" = None

    def __init__(self, slow: bool) -> None:
        self._slow = slow

    def record_event(self) -> Event:
        assert Stream.current is self
        return Event(3 if self._slow else 0)


def test_nobody_waits_for_a_slow_one_and_each_keeps_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def entered(stream: Stream) -> Iterator[None]:
        Stream.current = stream
        yield
        Stream.current = None

    def noting(name: str) -> Turns[None]:
        for _ in range(6):
            turns.append((name, Stream.current))
            yield

    turns: list[tuple[str, Stream | None]] = []
    streams = deque([Stream(slow=False), Stream(slow=True)])
    monkeypatch.setattr(module, "_stream", lambda places: streams.popleft())
    monkeypatch.setattr(torch.cuda, "stream", entered)
    list(together([noting("slow"), noting("fast")], 2))  # the last stream is the first to be taken
    assert len({stream for _, stream in turns}) == len(set(turns)) == 2
    assert None not in {stream for _, stream in turns}
    names = "".join(name[0] for name, _ in turns)
    assert names == "sffffsffssss"  # the slow one is ready at the fourth look
