"""What a training run writes and shows: rows of metrics, a progress line, checkpoints."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, SupportsFloat

from metastep.train.metrics import Metrics
from metastep.train.progress import Progress
from metastep.train.run import Run


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

    def row(self, step: int, kind: str, **values: SupportsFloat) -> None:
        if self.metrics:
            self.metrics.write(step, {"kind": kind, **values})

    def note(self, step: int, kind: str, **values: str) -> None:
        """A row of words"""
        if self.metrics:
            self.metrics.write(step, {"kind": kind, **values})

    def show(self, step: int, **values: SupportsFloat) -> None:
        if self.progress:
            self.progress.update(step, **values)

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

    def save(self, step: int, tree: Mapping[str, Any], best: Mapping[str, Any] | None = None) -> None:
        self.saved = step
        if self.metrics:
            self.metrics.sync()
            self.run.save(tree, best)
            self.written = time.monotonic()


@contextmanager
def recording(run: Run, after: int | None, total: int) -> Iterator[Record]:
    """`after`: the step of the checkpoint that the run goes on from, None for a new one."""
    with run.metrics(after) as metrics, Progress(total, after or 0, run.folder.name) as progress:
        yield Record(run, metrics, progress, after)
