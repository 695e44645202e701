"""Works side by side, each in a process of its own."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from metastep.errors import MetastepError
from metastep.train.stop import stop_on_signals
from study import together as module
from study.together import together


@pytest.fixture(autouse=True)
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no GPU here, and a new interpreter takes seconds"""
    monkeypatch.setattr(module, "START", "fork")


def named(name: str) -> str:
    print("working", file=sys.stderr)
    return name.upper()


def until_stopped(ready: Path) -> str:
    with stop_on_signals() as stop:
        ready.touch()
        while not stop.requested:
            time.sleep(0.01)
        return "stopped"


def failing() -> str:
    raise MetastepError("it cannot be done")


def dying() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


@pytest.mark.parametrize("places", [1, 2])
def test_each_gives_what_it_returns_by_its_name(places: int) -> None:
    asked: list[str] = []

    def works() -> Iterator[tuple[str, Callable[[], str]]]:
        for name in "abcd":
            asked.append(name)
            yield name, partial(named, name)

    ends = together(works(), places)
    first = next(ends)
    assert len(asked) == places  # there is no room for more until one is out
    assert sorted([first, *ends]) == [(name, name.upper()) for name in "abcd"]
    assert list(together(iter(()), places)) == []


def test_lines_of_several_say_whose_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    list(together([(name, partial(named, name)) for name in ("run a", "run b")], 2))
    assert sorted(capfd.readouterr().err.splitlines()) == ["run a  working", "run b  working"]


def test_asked_to_stop_all_are_told_and_nothing_more_is_begun(tmp_path: Path) -> None:
    def works() -> Iterator[tuple[str, Callable[[], str]]]:
        yield "patient", partial(until_stopped, tmp_path / "ready")
        while not (tmp_path / "ready").exists():
            time.sleep(0.01)
        signal.raise_signal(signal.SIGTERM)
        yield "beside it", partial(until_stopped, tmp_path / "other")
        pytest.fail("more is asked for")

    before = signal.getsignal(signal.SIGTERM)
    assert dict(together(works(), 2))["patient"] == "stopped"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("work", "message"), [(failing, "it cannot be done"), (dying, "bad: its process was killed")])
def test_what_one_raises_ends_the_others(work: Callable[[], str], message: str, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(MetastepError, match=message):
        list(together([("patient", partial(until_stopped, tmp_path / "ready")), ("bad", work)], 2))
    assert time.monotonic() - began < 20
