"""Several works side by side, each in a process of its own: on a GPU, steps too small to fill it fill it together."""

import multiprocessing as processes
import os
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, TextIO, TypeVar

from metastep.errors import MetastepError
from metastep.train.stop import Stop, stop_on_signals

Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")

START = "spawn"  # a process that was forked cannot use a GPU
LISTEN = 0.5  # seconds between two looks whether to stop


def together(works: Iterable[tuple[Name, Callable[[], Result]]], places: int) -> Iterator[tuple[Name, Result]]:
    """Do up to `places` of the works at a time, and yield each name with what its work returned, as it ends.

    The next of `works` is asked for when a place is free, and not after a signal to stop, which all processes get. An
    exception in one of them ends all. With one place, the works are done here, one after the other.

    Args:
        works: Names, and functions that can be pickled if there are several places.
        places: How many run at a time.
    """
    with stop_on_signals() as stop:
        yield from _here(works, stop) if places == 1 else _side_by_side(iter(works), places, stop)


def _here(works: Iterable[tuple[Name, Callable[[], Result]]], stop: Stop) -> Iterator[tuple[Name, Result]]:
    for name, work in works:
        yield name, work()
        if stop.requested:
            return


class _UnderWay(NamedTuple):
    name: Any
    process: Any


def _side_by_side(
    waiting: Iterator[tuple[Name, Callable[[], Result]]], places: int, stop: Stop
) -> Iterator[tuple[Name, Result]]:
    under_way: dict[Connection, _UnderWay] = {}
    told = False
    try:
        while True:
            while len(under_way) < places and not stop.requested and (next_one := next(waiting, None)) is not None:
                result, each = _begun(*next_one)
                under_way[result] = each
            if not under_way:
                return
            if stop.requested and not told:
                told = True
                for each in under_way.values():
                    each.process.terminate()  # it finishes its step, and keeps it
            ready = wait(list(under_way), timeout=LISTEN)
            for result in [each for each in under_way if each in ready]:
                yield from _ended(result, under_way.pop(result), stop)
    finally:
        for each in under_way.values():
            each.process.terminate()
        for each in under_way.values():
            each.process.join()


def _begun(name: Name, work: Callable[[], Result]) -> tuple[Connection, _UnderWay]:
    context: Any = processes.get_context(START)
    result, sender = context.Pipe(duplex=False)
    process = context.Process(target=_done, args=(str(name), work, sender))
    process.start()
    sender.close()
    return result, _UnderWay(name, process)


def _done(name: str, work: Callable[[], Result], sender: Connection) -> None:
    os.environ["TERM"] = "dumb"  # a terminal has room for one live line
    sys.stderr = _Named(name, sys.stderr)
    try:
        sender.send((work(), None))
    except BaseException as error:
        sender.send((None, error))


def _ended(result: Connection, each: _UnderWay, stop: Stop) -> Iterator[tuple[Any, Any]]:
    try:
        found, error = result.recv()
    except EOFError:
        found, error = None, MetastepError(f"{each.name}: its process was killed. Call it again to continue.")
        if stop.requested:  # before it could listen
            return
    finally:
        each.process.join()
    if error is not None:
        raise error
    yield each.name, found


class _Named:
    """Standard error of one of several processes: every line begins with its name."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name, self._stream, self._begins = name, stream, True

    def write(self, text: str) -> int:
        lines = "".join((f"{self._name}  " if self._begins or i else "") + line for i, line in enumerate(_lines(text)))
        self._begins = text.endswith("\n") or (self._begins and not text)
        return self._stream.write(lines)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)
