"""How far runs are: a live line for each on a terminal, a plain line now and then elsewhere."""

import sys
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Protocol, Self, SupportsFloat

from rich import progress as bars
from rich.console import Console

_REFRESH = 0.2  # seconds between two pictures on a terminal
_SAMPLES = 30  # the rate is over this many pictures or lines: a slow first step is soon forgotten


class Progress:
    """`with Progress(total) as progress: progress.update(step, loss=..., accuracy=...)`

    Metrics may be tensors: they are read (which waits for a GPU) only when they are shown.
    """

    def __init__(
        self,
        total: int,
        start: int = 0,
        name: str = "",
        every: float = 10.0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start`: the step a resumed run begins after; `name`: shown where there are several; `every`: seconds
        between two plain lines."""
        shared = shared_display.get()
        self._display = shared or Display(console or Console(stderr=True))
        self._is_shared, self._name = shared is not None, name if shared else ""
        self._total, self._clock, self._every = total, clock, _REFRESH if self._display.live else every
        self._latest: tuple[int, dict[str, SupportsFloat]] = start, {}
        self._due = 0.0
        self._seen = deque([(0.0, start)], maxlen=_SAMPLES)

    def update(self, step: int, **metrics: SupportsFloat) -> None:
        self._latest = step, metrics
        if self._clock() >= self._due:
            self._show()

    def say(self, line: str) -> None:
        """One line beside the live ones"""
        self._display.say(": ".join(filter(None, (self._name, line))))

    def _show(self) -> None:
        step, metrics = self._latest
        now = self._clock()
        self._due = now + self._every
        self._seen.append((now, step))
        self._line.show(step, "  ".join(self._words(step, metrics)))

    def _words(self, step: int, metrics: dict[str, SupportsFloat]) -> list[str]:
        (then, first), (now, last) = self._seen[0], self._seen[-1]
        rate = (last - first) / (now - then) if now > then else 0.0
        left = [f"{_clock_time((self._total - step) / rate)} left"] if rate > 0 and step < self._total else []
        return [_rate(rate), *(f"{name} {float(value):.4g}" for name, value in metrics.items()), *left]

    def __enter__(self) -> Self:
        now = self._clock()
        self._due = now + self._every
        self._seen[0] = now, self._latest[0]
        if not self._is_shared:
            self._display.open()
        self._line = self._display.line(self._name, self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self._latest[0] != self._seen[-1][1]:  # what came after the last picture
                self._show()
        finally:
            self._line.remove() if self._is_shared else self._display.close()


def say(line: str, name: str = "") -> None:
    """One line beside the live ones, where there are any; `name`: shown where there are several"""
    shared = shared_display.get()
    (shared or Display(Console(stderr=True))).say(": ".join(filter(None, (name if shared else "", line))))


class _Line(Protocol):
    def show(self, step: int, summary: str) -> None: ...
    def remove(self) -> None: ...


class Display:
    def __init__(self, console: Console, named: bool = False) -> None:
        self._console, self.live = console, console.is_terminal and not console.is_dumb_terminal
        self._bars = bars.Progress(
            *([bars.TextColumn("{task.description}", markup=False)] if named else []),
            bars.TextColumn("{task.completed}/{task.total}"),
            bars.BarColumn(bar_width=24),
            bars.TextColumn("{task.fields[summary]}", markup=False),
            console=console,
            auto_refresh=False,  # no thread beside the training loop
            redirect_stdout=sys.stdout.isatty(),  # what goes to a file still does
            disable=not self.live,
        )

    def open(self) -> None:
        self._bars.start()

    def close(self) -> None:
        self._bars.stop()

    def line(self, name: str, total: int) -> _Line:
        return _Bar(self._bars, name, total) if self.live else _Plain(self.say, name, total)

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


shared_display: ContextVar[Display | None] = ContextVar("shared_display", default=None)
"""The one display of several runs in this process. Whoever runs several of them sets it."""


class _Bar:
    def __init__(self, all_bars: bars.Progress, name: str, total: int) -> None:
        self._bars, self._task = all_bars, all_bars.add_task(name, total=total, summary="")

    def show(self, step: int, summary: str) -> None:
        self._bars.update(self._task, completed=step, summary=summary, refresh=True)

    def remove(self) -> None:
        self._bars.remove_task(self._task)


class _Plain:
    def __init__(self, say: Callable[[str], None], name: str, total: int) -> None:
        self._say, self._name, self._total = say, name, total

    def show(self, step: int, summary: str) -> None:
        self._say("  ".join(filter(None, (self._name, f"step {step}/{self._total}", summary))))

    def remove(self) -> None:
        pass


def _rate(per_second: float) -> str:
    return f"{per_second:.3g} steps/s" if per_second >= 1 or per_second == 0 else f"{1 / per_second:.3g} s/step"


def _clock_time(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
