"""The training loop, for few-shot learning and for transfer: draw, step, look, measure, validate, keep.

All that an iteration depends on is in the checkpoint, or is a function of the seed and the iteration's number: a run
that was interrupted ends as if it had not been, bit for bit on a CPU. `Job` is what a job gives the loop.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple, Protocol, SupportsFloat

import torch
from torch import Tensor

from metastep.core.suggest import STUCK
from metastep.core.trees import map_tree
from metastep.core.windows import window_lengths
from metastep.data.errors import QUIETLY, Progress
from metastep.errors import NonFiniteError
from metastep.step.ranks import ALONE, Ranks
from metastep.train.config import Config, FewShot
from metastep.train.device import environment
from metastep.train.io import RunError
from metastep.train.record import Record, recording, say
from metastep.train.remembered import changed
from metastep.train.run import Run, Trained, trained_of
from metastep.train.stop import Stop, stop_on_signals


class Row(NamedTuple):
    """A row of metrics, without the seconds, which the loop knows."""

    step: int
    kind: str
    values: dict[str, float]


class Job(Protocol):
    """A run that is ready to train: the loop decides when, the job knows what."""

    total: int
    """Iterations of the whole run"""
    epoch: int
    """Iterations of an epoch; 1 where there are none"""
    queued: int
    """Iterations that the device is given before anybody waits for it"""
    log_every: int
    validate_every: int
    """Iterations between two validations; 0 for none"""
    device: torch.device
    notice: str
    """What the first iteration waits for, if that takes long"""
    notes: Mapping[str, dict[str, str]]
    """Rows of words, by their kind"""

    @property
    def path(self) -> str:
        """Say how an iteration is computed; known after the first one."""

    def restore(self, tree: dict[str, Any], path: Path) -> None:
        """Take the state of a checkpoint."""

    def begin(self, done: int, folder: Path) -> None:
        """Make ready for the iterations after the first `done`."""

    def advance(self, k: int) -> None:
        """Draw what iteration k learns from, counted from 0, and make it. The device may still be at work then."""

    def look(self, done: int) -> None:
        """Wait for the device, and raise if its numbers are not finite."""

    def shown(self) -> Mapping[str, SupportsFloat]:
        """Return what the progress line shows."""

    def measured(self, done: int) -> Iterator[Row]:
        """Yield the rows of metrics that are due after so many iterations."""

    def judged(self, done: int) -> dict[str, float]:
        """Validate. `validation_accuracy` chooses the best checkpoint."""

    def state(self, done: int) -> dict[str, Any]:
        """Return all that a checkpoint keeps; raise if it is not finite."""

    def finish(self, run: Run) -> None:
        """Write what else a run leaves that has made all its iterations."""


@dataclass(frozen=True)
class Plan:
    """A run whose every need was found, before anything is written."""

    folder: Path
    config: Config
    """As the folder keeps it"""
    job: Callable[[], Job]
    """Makes it ready; where a source comes first, only when that is trained"""
    is_new: bool
    """Whether there is no folder yet"""
    source: "Plan | None" = None
    """The run that trains the net which this one learns from"""


def train(
    config: Config,
    folder: Path,
    data: Path | None = None,
    ranks: Ranks = ALONE,
    reading: AbstractContextManager[Progress] = QUIETLY,
) -> Trained:
    """Train a new run.

    Args:
        config: What to train.
        folder: Where; empty, or not there yet.
        data: The directory that data sets are in.
        ranks: The processes that take part.
        reading: Shows how far reading the data is. It is closed before training shows itself.

    Returns:
        How far the run came: to its end, or to where it was asked to stop.

    Raises:
        MetastepError: It cannot be trained. Then no folder is made.
    """
    with reading as progress:
        plan = _planner(config)(config, folder, data, ranks, progress)
    return _carried_out(plan, ranks)


def resume(
    folder: Path, data: Path | None = None, changes: Mapping[str, str] | None = None, ranks: Ranks = ALONE
) -> Trained:
    """Continue a run from its last checkpoint.

    Args:
        folder: The folder of the run.
        data: The directory that data sets are in.
        changes: What may change of a run, by the names of its fields: `iterations`, where its pictures are
            (`data.name`, `data.test`, `source.dataset`), and nets of the user's own, which have to be named again
            (`net.name`, `source.net`).
        ranks: The processes that take part.

    Returns:
        How far the run came.

    Raises:
        MetastepError: It cannot continue. Then it is left as it was.
    """
    given = changes or {}
    run = ranks.from_first(lambda: Run.open(folder))
    config = ranks.from_first(lambda: changed(run, given, data))
    return _carried_out(_planner(config)(config, folder, data, ranks, nets=given), ranks)


def _planner(config: Config) -> Callable[..., Plan]:
    if isinstance(config, FewShot):
        from metastep.train.fewshot import job as few_shot  # here: a run needs one job, and imports no other

        return few_shot.plan
    from metastep.train.transfer import job as transfer

    return transfer.plan


def _carried_out(plan: Plan, ranks: Ranks) -> Trained:
    run = ranks.from_first(lambda: _opened(plan))
    with stop_on_signals() as stop:
        if plan.source:
            say(f"First the source: {plan.source.config.in_short}.")
            taught = _carried_out(plan.source, ranks)
            if stop.requested:  # be it in the source's last iteration
                return Trained(source=taught)
            say(f"Then the target: {plan.config.in_short}.")
        job = plan.job()
        with run.lock() if ranks.is_first else nullcontext():
            return _trained(run, plan.config, job, stop, ranks)


def _opened(plan: Plan) -> Run:
    if plan.is_new:
        return Run.create(plan.folder, plan.config)
    run = Run.open(plan.folder)
    run.reconfigure(plan.config)
    return run


def _trained(run: Run, config: Config, job: Job, stop: Stop, ranks: Ranks) -> Trained:
    at, saved = _restored(run, job, ranks)
    at.total = job.total
    job.begin(at.iterations, run.folder)
    with recording(run, saved, job.total, ranks) as record, _telling_what_is_kept(record):
        if not at.finished:
            _tell(record, at.iterations, {"environment": environment(job.device), **job.notes}, job.notice)
        first, stopping, advice = at.iterations, False, Advice(config)
        while at.iterations < job.total and not stopping:
            began = time.perf_counter()
            job.advance(at.iterations)
            at.iterations += 1
            done = at.iterations
            ending, validating = done == job.total, _is_due(job.validate_every, done)
            pausing = ending or validating or _is_due(job.log_every, done) or _is_due(job.queued, done)
            if pausing or (stop.requested and ranks.count == 1):
                pausing, stopping = True, _asked(stop, ranks, job.device)
                job.look(done)
            at.seconds += time.perf_counter() - began

            if done == first + 1:
                _tell(record, done, {"engine": {"path": job.path}}, f"Engine: {job.path}.")
            if pausing:
                record.show(done, job.shown)
                for row in job.measured(done):
                    record.row(row.step, row.kind, **row.values, seconds=at.seconds)
                    if line := advice(row.step, row.values):
                        _tell(record, done, {"advice": {"text": line}}, line)
            if validating:
                judged = job.judged(done)
                record.row(done, "validation", **judged, seconds=at.seconds)
                if at.improves(judged, done):
                    record.remember_best(done, _copied(_kept(job, at)))  # iterations write over the state
            if ending or stopping or (pausing and record.due(config.checkpoint_seconds)):
                record.save(done, _kept(job, at))
    if at.finished:
        job.finish(run)
    return at


def _restored(run: Run, job: Job, ranks: Ranks) -> tuple[Trained, int | None]:
    """Return how far the run is, and the iteration of its checkpoint if it has one."""
    saved = ranks.from_first(lambda: run.load() if run.last.is_file() else None)
    if saved is None:
        return Trained(epoch=job.epoch), None
    at = trained_of(saved, run.last)
    job.restore(saved, run.last)
    return at, at.iterations


def _kept(job: Job, at: Trained) -> dict[str, Any]:
    return job.state(at.iterations) | {"trained": at.kept}


def _copied(tree: dict[str, Any]) -> dict[str, Any]:
    copied: dict[str, Any] = map_tree(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, tree)
    return copied


def _is_due(every: int, done: int) -> bool:
    return every > 0 and done % every == 0


def _asked(stop: Stop, ranks: Ranks, device: torch.device) -> bool:
    """Whether a process was asked to stop: all of them then end after the same iteration"""
    if ranks.count == 1:
        return stop.requested
    return bool(ranks.total(torch.tensor(float(stop.requested), device=device)) > 0)


def _tell(record: Record, done: int, notes: Mapping[str, Mapping[str, str]], line: str) -> None:
    for kind, words in notes.items():
        record.row(done, kind, **words)
    if line:
        record.say(line)


@contextmanager
def _telling_what_is_kept(record: Record) -> Iterator[None]:
    try:
        yield
    except NonFiniteError as error:
        record.save_best()
        raise NonFiniteError(f"{error} {record.kept()}") from None
    except RunError as error:  # such as a disk that is full
        raise type(error)(f"{error} {record.kept()}") from error


# ---- advice where training does not learn, from the rows of metrics
# Meta-gradients that explode in the first iterations stay in the second moment of an outer Adam, and accuracy stays
# where it began for thousands of iterations.


ROWS = 20  # that are looked at
PATIENCE = 300  # iterations before anything is said
RISE = 0.03  # of accuracy, less than which is no learning


class Advice:
    """Look at the rows of a run, and say once what keeps it from learning.

    Args:
        config: What is trained. Only few-shot learning has rows of this kind.
    """

    def __init__(self, config: Config) -> None:
        self._config = config if isinstance(config, FewShot) else None
        self._growth, self._accuracy = deque[float](maxlen=ROWS), deque[float](maxlen=ROWS)
        self._first: list[float] = []

    def __call__(self, step: int, row: Mapping[str, float]) -> str:
        """Return what to tell after this row; mostly nothing."""
        if self._config is None or "accuracy" not in row:
            return ""
        self._accuracy.append(row["accuracy"])
        self._growth += [row["growth"]] if "growth" in row else []
        if len(self._first) < ROWS:
            self._first.append(row["accuracy"])
        if step < PATIENCE or len(self._accuracy) < ROWS:
            return ""
        config, found = self._config, self._explodes() or self._stands_still(1 / self._config.data.ways)
        if not found:
            return ""
        self._config = None  # it is said once
        return f"{found} Try {', or '.join(remedies(config))}."

    def _explodes(self) -> str:
        growth = median(self._growth) if len(self._growth) == ROWS else 0.0
        if growth <= STUCK:
            return ""
        return (
            f"The sweep makes gradients {growth:.3g} times as long (growth). Above {STUCK:g}, meta-gradients explode, "
            "and little is learned."
        )

    def _stands_still(self, chance: float) -> str:
        now = mean(self._accuracy)
        if now > (1 + chance) / 2 or now > mean(self._first) + RISE or len(self._first) < ROWS:
            return ""
        return f"Accuracy is {100 * now:.0f} % as it was at the start (chance: {100 * chance:.0f} %)."


def remedies(config: FewShot) -> list[str]:
    """Return what a configuration has not tried yet, the likeliest first."""
    outer, lr = config.outer, getattr(config.inner, "lr", None)
    tries = {
        "outer.clip=0.5": outer.clip is None and outer.clip_value is None,
        f"inner.lr={lr / 4:g}" if isinstance(lr, float) else "a lower inner rate": True,
        "shorter windows (method.window)": max(window_lengths(config.steps, getattr(config.method, "window", 1))) > 1,
        "outer.warmup=100": outer.warmup == 0 and config.method_name not in ("fo_maml", "reptile", "imaml"),
    }
    return [remedy for remedy, helps in tries.items() if helps]
