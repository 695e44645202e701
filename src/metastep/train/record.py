"""What a training run writes and shows: rows of metrics, a progress line, checkpoints.

metrics.jsonl has one JSON object a line, each with its step; it is mirrored to TensorBoard where that is installed.
"""

import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, SupportsFloat

from rich import progress as bars
from rich.console import Console

from metastep.step.ranks import Ranks
from metastep.train.io import RunError, explained, itself, problem, read_file, replace_file, require_no_link
from metastep.train.run import Run

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

# ---- how far a run is: a live line on a terminal, a plain line now and then elsewhere


_REFRESH = 0.2  # seconds between two pictures on a terminal
_SAMPLES = 30  # the rate is over this many pictures or lines: a slow first step is soon forgotten

Shown = Callable[[], Mapping[str, SupportsFloat]]


class Progress:
    """`with Progress(total) as progress: progress.update(step, lambda: {"loss": loss})`

    Metrics are asked for (and tensors read, which waits for a GPU) only when they are shown.
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
        self._console = console or Console(stderr=True)
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._total, self._clock, self._every = total, clock, _REFRESH if self._live else every
        self._latest: tuple[int, Shown] = start, dict
        self._due = 0.0
        self._seen = deque([(0.0, start)], maxlen=_SAMPLES)
        self._bars = bars.Progress(
            bars.TextColumn("{task.completed}/{task.total}"),
            bars.BarColumn(bar_width=24),
            bars.TextColumn("{task.fields[summary]}", markup=False),
            console=self._console,
            auto_refresh=False,  # no second thread
            redirect_stdout=sys.stdout.isatty(),  # what goes to a file still does
            disable=not self._live,
        )

    def update(self, step: int, shown: Shown) -> None:
        self._latest = step, shown
        if self._clock() >= self._due:
            self._show()

    def say(self, line: str) -> None:
        """One line above the live one"""
        say(line, self._console)

    def _show(self) -> None:
        step, shown = self._latest
        now = self._clock()
        self._due = now + self._every
        self._seen.append((now, step))
        summary = "  ".join(self._words(step, shown()))
        if self._live:
            self._bars.update(self._bar, completed=step, summary=summary, refresh=True)
        else:
            self.say(f"step {step}/{self._total}  {summary}")

    def _words(self, step: int, metrics: Mapping[str, SupportsFloat]) -> list[str]:
        (then, first), (now, last) = self._seen[0], self._seen[-1]
        rate = (last - first) / (now - then) if now > then else 0.0
        left = [f"{_clock_time((self._total - step) / rate)} left"] if rate > 0 and step < self._total else []
        return [_rate(rate), *(f"{name} {float(value):.4g}" for name, value in metrics.items()), *left]

    def __enter__(self) -> Self:
        now = self._clock()
        self._due = now + self._every
        self._seen[0] = now, self._latest[0]
        self._bars.start()
        self._bar = self._bars.add_task("", total=self._total, summary="")
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if error is None and self._latest[0] != self._seen[-1][1]:  # what came after the last picture
                self._show()
        finally:
            self._bars.stop()


def say(line: str, console: Console | None = None) -> None:
    """Tell one line where progress is shown."""
    (console or Console(stderr=True)).print(line, markup=False, highlight=False, soft_wrap=True)


def _rate(per_second: float) -> str:
    return f"{per_second:.3g} steps/s" if per_second >= 1 or per_second == 0 else f"{1 / per_second:.3g} s/step"


def _clock_time(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


# ---- rows of metrics


Row = dict[str, Any]
Value = SupportsFloat | str


def open_tensorboard(folder: Path, after: int | None) -> "SummaryWriter | None":
    """Return None without the package. TensorBoard drops what an interrupted run wrote beyond step `after`."""
    try:
        from torch.utils.tensorboard import SummaryWriter  # only here: it is optional, and slow to import
    except ImportError:
        return None
    return SummaryWriter(folder, purge_step=0 if after is None else after + 1)


class Metrics:
    """Appends rows. Write the rows of a step and `sync` before saving its checkpoint: a resume drops all later ones."""

    def __init__(self, path: Path, after: int | None = None, tensorboard: Path | None = None) -> None:
        """`after`: the step of the checkpoint to continue from; None if there is none, and the file starts anew."""
        drop_rows_beyond(path, after)
        self._path = path
        self._mirror: SummaryWriter | None = None
        if tensorboard:
            require_no_link(tensorboard)
        with explained(path, "opened"):
            self._file = open(path, "ab", buffering=0, opener=itself)  # noqa: SIM115 - kept open for the life of this object
        if tensorboard:
            with explained(tensorboard, "written"):
                self._mirror = open_tensorboard(tensorboard, after)

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        """A row is with the system when this returns: `kill -9` cannot lose it."""
        if "step" in values:
            raise problem(RunError, self._path, "a metric is named 'step'", "Rename it: the step is given apart")
        plain = {name: value if isinstance(value, (int, str)) else float(value) for name, value in values.items()}
        line = json.dumps({"step": step} | {name: _as_json(value) for name, value in plain.items()}) + "\n"
        with explained(self._path, "written"):
            self._append(line.encode())
        for name, value in plain.items():
            if not isinstance(value, str):
                self._to_mirror("add_scalar", name, value, step)

    def _append(self, line: bytes) -> None:
        size = os.fstat(self._file.fileno()).st_size
        try:
            while line:  # a disk that fills up takes a part first, and refuses the rest
                line = line[self._file.write(line) :]
        except BaseException:
            with suppress(OSError):
                self._file.truncate(size)
            raise

    def sync(self) -> None:
        """To the disk itself: a checkpoint that is saved next never has steps that the metrics lost."""
        with explained(self._path, "written"):
            os.fsync(self._file.fileno())
        self._to_mirror("flush")

    def close(self) -> None:
        self._file.close()
        self._to_mirror("close")

    def _to_mirror(self, act: str, *values: Any) -> None:
        """A run does not need it: where it fails, it ends, and the run goes on"""
        if self._mirror:
            try:
                getattr(self._mirror, act)(*values)
            except OSError as error:
                self._mirror = None
                say(f"What TensorBoard shows of {str(self._path.parent)!r} ends here ({error.strerror or error}).")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_metrics(path: Path) -> list[Row]:
    """All rows; a last line that was cut by the end of its writer is passed over. null is NaN again."""
    return [{name: math.nan if x is None else x for name, x in row.items()} for _, row in _rows(path, read_file(path))]


def drop_rows_beyond(path: Path, step: int | None) -> None:
    """Keep the rows up to `step` (none if None), atomically: what is left is as if the run had stopped there."""
    if not os.path.exists(path):
        return
    data = read_file(path)
    kept = b"" if step is None else b"".join(line for line, row in _rows(path, data) if row["step"] <= step)
    if kept != data:
        replace_file(path, kept)


def _rows(path: Path, data: bytes) -> Iterator[tuple[bytes, Row]]:
    *lines, cut = data.split(b"\n")
    del cut  # what follows the last line end: nothing, or a row whose writer was killed
    for number, line in enumerate(lines, 1):
        yield line + b"\n", _row(path, number, line)


def _row(path: Path, number: int, line: bytes) -> Row:
    try:
        row: Row = json.loads(line)
        if not isinstance(row["step"], int):
            raise ValueError("its step is no whole number")
        if odd := [name for name, value in row.items() if isinstance(value, list | dict)]:
            raise ValueError(f"{odd[0]!r} is neither a number nor text")
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise problem(RunError, path, f"line {number} is no row of metrics ({cause})", "Delete that line") from cause
    return row


def _as_json(value: int | float | str) -> int | float | str | None:
    """JSON knows no NaN and no infinity: null is what every reader of the file understands."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- what a run writes and shows


@dataclass
class Record:
    """Without metrics and progress, as on all ranks but the first, every call does nothing"""

    run: Run
    metrics: Metrics | None = None
    progress: Progress | None = None
    saved: int | None = None
    """The step of the last checkpoint"""
    written: float = field(default_factory=time.monotonic)
    """When it was written, or the run began"""
    best: tuple[int, Mapping[str, Any]] | None = None
    """The best state so far with its step, if it is not written yet"""

    def row(self, step: int, kind: str, **values: Value) -> None:
        if self.metrics:
            self.metrics.write(step, {"kind": kind, **values})

    def show(self, step: int, values: Callable[[], Mapping[str, SupportsFloat]]) -> None:
        """values: called only where they are shown"""
        if self.progress:
            self.progress.update(step, values)

    def say(self, line: str) -> None:
        if self.progress:
            self.progress.say(line)

    def kept(self) -> str:
        if self.saved is None:
            return "There was no checkpoint yet."
        return f"The last good checkpoint, of iteration {self.saved}, is kept in {str(self.run.folder)!r}."

    def due(self, seconds: float) -> bool:
        """Whether the last checkpoint is older than that"""
        return self.metrics is not None and time.monotonic() - self.written >= seconds

    def remember_best(self, step: int, tree: Mapping[str, Any]) -> None:
        """Write a new best state with the next checkpoint; `tree` must stay as it is until then"""
        self.best = step, tree

    def save(self, step: int, tree: Mapping[str, Any]) -> None:
        if self.metrics:
            self.metrics.sync()
            self.run.save(tree, self.best[1] if self.best else None)
            self.written = time.monotonic()
        self.saved, self.best = step, None

    def save_best(self) -> None:
        """Write a best state that waits: it is younger than the last checkpoint"""
        if self.best:
            self.save(*self.best)


@contextmanager
def recording(run: Run, after: int | None, total: int, ranks: Ranks) -> Iterator[Record]:
    """`after`: the step of the checkpoint that the run continues from, None for a new one."""
    if not ranks.is_first:
        yield Record(run, saved=after)
        return
    with Metrics(run.metrics_path, after, run.tensorboard_path) as metrics, Progress(total, after or 0) as progress:
        yield Record(run, metrics, progress, after)
