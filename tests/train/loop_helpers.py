"""Both jobs of the training loop, small enough for a test; as a program, runs that are killed."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch import Tensor

from metastep.train import remembered
from metastep.train.config import Source
from metastep.train.fewshot.job import FewShotJob
from metastep.train.loop import resume, train
from metastep.train.record import read_metrics
from metastep.train.run import Run, Trained, Which
from metastep.train.transfer.building import source_run
from metastep.train.transfer.job import TransferJob
from tests.train.fewshot import helpers as few_shot
from tests.train.transfer import train_helpers as transfer

Job = type[FewShotJob] | type[TransferJob]


@dataclass(frozen=True)
class Case:
    """A run of 12 iterations or 9, of few-shot learning or transfer"""

    config: Any
    job: Job
    iterations: int
    named: dict[str, str]
    """The nets to name again"""

    def train(self, folder: Path, **changes: Any) -> Trained:
        return train(replace(self.config, **changes), folder)

    def resume(self, folder: Path) -> Trained:
        return resume(folder, changes=self.named)

    @contextmanager
    def before(self, iteration: int, act: Callable[[Any], None]) -> Iterator[None]:
        """Do something before an iteration, counted from 0, once; not in the run of a source"""
        advance, done = self.job.advance, []

        def acting(job: Any, k: int) -> None:
            if k == iteration and job.total == self.iterations and not done:
                done.append(k)
                act(job)
            advance(job, k)

        with patch.object(self.job, "advance", acting):
            yield


FEW_SHOT = Case(few_shot.TINY, FewShotJob, 12, {})
FROM_NOTHING = Case(transfer.TINY, TransferJob, 9, transfer.NAMED)


def with_source(folder: Path) -> Case:
    """Transfer from a source that is trained here first"""
    source = folder / "source"
    if not Run.is_there(source):
        train(source_run(transfer.TINY), source)
    return replace(FROM_NOTHING, config=replace(transfer.TINY, source=Source(transfer.TEACHER, weights=str(source))))


def loading(name: str, root: Path | None = None, size: int | None = None, progress: object = None) -> Any:
    """Stripes, for whatever data set is asked for"""
    del root, progress
    return SimpleNamespace(classes=few_shot.stripes, labelled=partial(transfer.stripes, name, size))


def press(number: signal.Signals) -> Callable[[Any], None]:
    return lambda job: os.kill(os.getpid(), number)


def breaks(job: Any) -> None:
    raise RuntimeError("the machine broke")


def poison(job: Any) -> None:
    """φ or θ that is no number"""
    tree = job.learner.meta if isinstance(job, FewShotJob) else job._state.target.params["target"]
    with torch.no_grad():
        next(iter(tree.values())).fill_(torch.nan)


def checkpoint(folder: Path, which: Which = "last") -> dict[str, Any]:
    """All that is in it but times"""
    tree = Run(folder).load(which)
    tree["trained"]["seconds"] = 0.0
    return tree


def rows(folder: Path) -> list[dict[str, Any]]:
    """Without times, and without those about how a part of a run was computed"""
    about = ("engine", "environment", "layers")
    return [{**row, "seconds": 0} for row in read_metrics(Run(folder).metrics_path) if row["kind"] not in about]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


def same_runs(a: Path, b: Path) -> bool:
    """Whether two runs left the same, bit for bit"""
    whiches: tuple[Literal["last", "best"], ...] = ("last", "best")
    return rows(a) == rows(b) and all(same(checkpoint(a, which), checkpoint(b, which)) for which in whiches)


def killed_at_random(case: Case, folder: Path, kills: int) -> tuple[int, bool]:
    """How often a run died, and whether it ended as one that was left alone

    One interpreter imports everything and forks what is to be killed.
    """
    case.train(folder / "first")  # torch loads much of itself at the first step
    began = time.perf_counter()
    case.train(folder / "whole")
    duration = time.perf_counter() - began

    def go_on(run: Path) -> None:
        case.resume(run) if Run.is_there(run) else case.train(run)

    moments, killed = random.Random(0), 0
    for _ in range(kills):
        child = os.fork()
        if child == 0:
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - this process ends here
            go_on(folder / "broken")
            os._exit(0)
        time.sleep(moments.uniform(0, 1.5 * duration / kills))
        os.kill(child, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    go_on(folder / "broken")
    return killed, same_runs(folder / "whole", folder / "broken")


if __name__ == "__main__":
    torch.set_num_threads(1)
    remembered.load = loading  # type: ignore[assignment]
    name, place, number = sys.argv[1:]
    asked = FEW_SHOT if name == "few-shot" else with_source(Path(place))
    print(*killed_at_random(asked, Path(place), int(number)))
