"""How far a run is: a live line on a terminal, a plain line now and then elsewhere."""

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self, SupportsFloat

from rich import progress as bars
from rich.console import Console

_REFRESH = 0.2  # seconds between two pictures on a terminal
_SAMPLES = 30  # the rate is over this many pictures or lines: a slow first step is soon forgotten


class _View(Protocol):
    def open(self) -> None: ...
    def show(self, step: int, summary: str) -> None: ...
    def close(self) -> None: ...


class Progress:
    """`with Progress(total) as progress: progress.update(step, loss=..., accuracy=...)`

    Metrics may be tensors: they are read (which waits for a GPU) only when they are shown.
    """

    def __init__(
        self,
        total: int,
        start: int = 0,
        every: float = 10.0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start`: the step a resumed run begins after; `every`: seconds between two plain lines."""
        console = console or Console(stderr=True)
        live = console.is_terminal and not console.is_dumb_terminal
        self._view: _View = _Bar(console, total) if live else _Lines(console, total)
        self._console, self._total, self._clock, self._every = console, total, clock, _REFRESH if live else every
        self._latest: tuple[int, dict[str, SupportsFloat]] = start, {}
        self._due = 0.0
        self._seen = deque([(0.0, start)], maxlen=_SAMPLES)

    def update(self, step: int, **metrics: SupportsFloat) -> None:
        self._latest = step, metrics
        if self._clock() >= self._due:
            self._show()

    def say(self, line: str) -> None:
        """One line beside the live one"""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _show(self) -> None:
        step, metrics = self._latest
        now = self._clock()
        self._due = now + self._every
        self._seen.append((now, step))
        self._view.show(step, "  ".join(self._words(step, metrics)))

    def _words(self, step: int, metrics: dict[str, SupportsFloat]) -> list[str]:
        (then, first), (now, last) = self._seen[0], self._seen[-1]
        rate = (last - first) / (now - then) if now > then else 0.0
        left = [f"{_clock_time((self._total - step) / rate)} left"] if rate > 0 and step < self._total else []
        return [_rate(rate), *(f"{name} {float(value):.4g}" for name, value in metrics.items()), *left]

    def __enter__(self) -> Self:
        now = self._clock()
        self._due = now + self._every
        self._seen[0] = now, self._latest[0]
        self._view.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self._latest[0] != self._seen[-1][1]:  # what came after the last picture
                self._show()
        finally:
            self._view.close()


class _Bar:
    def __init__(self, console: Console, total: int) -> None:
        self._bars = bars.Progress(
            bars.TextColumn("{task.completed}/{task.total}"),
            bars.BarColumn(bar_width=24),
            bars.TextColumn("{task.fields[summary]}", markup=False),
            console=console,
            auto_refresh=False,  # no thread beside the training loop
        )
        self._task = self._bars.add_task("", total=total, summary="")

    def open(self) -> None:
        self._bars.start()

    def show(self, step: int, summary: str) -> None:
        self._bars.update(self._task, completed=step, summary=summary, refresh=True)

    def close(self) -> None:
        self._bars.stop()


class _Lines:
    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total

    def open(self) -> None:
        pass

    def show(self, step: int, summary: str) -> None:
        line = f"step {step}/{self._total}  {summary}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        pass


def _rate(per_second: float) -> str:
    return f"{per_second:.3g} steps/s" if per_second >= 1 or per_second == 0 else f"{1 / per_second:.3g} s/step"


def _clock_time(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
