"""Which start of the head serves all four settings of the paper, found on validation classes; and what a start does.

Trains on Omniglot's training classes alone, at the paper's inner rate of 0.4, and validates on the classes that are
held out of its 1,200. Each configuration is a run in a folder of its own, several at a time on a GPU; Ctrl-C and
--budget stop cleanly, and the same command goes on. Exit status 130 says that there is more to do. On a CPU, or without
Omniglot, it can only be tried out: --filters 8 --tasks 2 --iterations 4.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

from benchmarks import results
from benchmarks.curves import draw_accuracies
from benchmarks.first_look import first_look
from benchmarks.settings import PAPER, Size, configured, data_set
from metastep.errors import MetastepError, NonFiniteError
from metastep.fewshot.config import TrainConfig, ValidationConfig
from metastep.fewshot.sampling import fitted, read_images
from metastep.fewshot.train import Trained, resume_in_turns, train_in_turns
from metastep.nets import HeadInit
from metastep.reproduce import fewshot_runs
from metastep.reproduce.session import release, within
from metastep.runs import Run, read_metrics, stop_on_signals
from metastep.runs.device import uses_gpu
from metastep.runs.files import replace_file
from metastep.runs.together import Turns, together

SETTINGS, METHODS = ("5w1s", "20w1s", "5w5s", "20w5s"), ("multistep4", "maml")  # those that cost least first
HEADS: tuple[HeadInit, ...] = ("zero", "default", "xavier", "kaiming")
LOOK = "first_look.json"  # in the folder of a run
TOGETHER = 4  # on a GPU
UNFINISHED = 130  # as after Ctrl-C


class Job(NamedTuple):
    setting: str
    method: str
    head: HeadInit

    @property
    def name(self) -> str:
        return "-".join(self)


@dataclass(frozen=True)
class Study:
    runs: Path
    data: Path | None
    size: Size
    iterations: int
    episodes: int  # of a validation
    looks: int  # validations of a run

    def config(self, job: Job) -> TrainConfig:
        config = configured(data_set(self.data), job.setting, job.method, self.size, self.iterations)
        every = max(1, self.iterations // self.looks)
        return replace(
            config,
            data=replace(config.data, split="train"),
            net=replace(config.net, head_init=job.head),
            validation=ValidationConfig(every, self.episodes),
            checkpoint_every=every,
            precision="tf32" if uses_gpu("auto") else "float32",
        )

    def run(self, job: Job) -> Turns[str]:
        """Train as far as it goes, and look at its start; what was wrong with it, if something was"""
        failure, folder = "", self.runs / job.name
        try:
            yield from self.train(job, folder)
        except NonFiniteError as error:
            failure = str(error)
        if not (folder / LOOK).is_file():
            config = self.config(job)
            images, _ = read_images(config, self.data)
            replace_file(folder / LOOK, json.dumps(first_look(fitted(config, images), images)).encode())
        return failure

    def train(self, job: Job, folder: Path) -> Turns[None]:
        config = self.config(job)
        if not (folder / "config.json").is_file():
            yield from train_in_turns(config, folder, self.data)
            return
        if not fewshot_runs.same(config, fewshot_runs.read(folder)):
            raise MetastepError(f"{str(folder)!r}: is a run of something else. Choose another --runs, or move it.")
        if not self.finished(job):
            yield from resume_in_turns(folder, self.data)

    def finished(self, job: Job) -> bool:
        folder = self.runs / job.name
        return (folder / LOOK).is_file() and fewshot_runs.position(folder).finished

    def row(self, job: Job, failure: str = "") -> dict[str, Any]:
        run = Run.open(self.runs / job.name)
        config, trained = run.config(TrainConfig), Trained(**run.load()["trained"]) if run.last.is_file() else Trained()
        seen = [row for row in read_metrics(run.metrics_path) if "validation_accuracy" in row]
        return {
            "setting": f"{config.data.name}-{job.setting}", "ways": config.data.ways, "implementation": "metastep",
            "method": job.method,
            "steps": config.inner.steps, "window": config.window, "tasks": config.outer.tasks,
            "chunk": config.chunk_size, "precision": config.precision, "filters": config.net.filters,
            "rate": config.inner.lr, "head": job.head, "iterations": trained.iterations,
            "wanted": config.outer.iterations, "seconds": round(trained.seconds, 1), "beside": trained.beside,
            "episodes": config.validation.episodes,
            "curve": [[row["step"], round(100 * row["validation_accuracy"], 3)] for row in seen],
            "interval": round(100 * seen[-1]["validation_interval"], 3) if seen else None,
            **json.loads((run.folder / LOOK).read_text()), "note": failure,
        }  # fmt: skip


def complete(study: Study, jobs: Sequence[Job], places: int, budget: float | None) -> dict[Job, str]:
    """Every job as far as time allows; those that came to their end, or cannot go on, with the reason"""
    ended: dict[Job, str] = {}

    def named(job: Job) -> Turns[tuple[Job, str]]:
        return job, (yield from study.run(job))

    with stop_on_signals(), within(budget):
        for job, failure in together((named(job) for job in jobs), places):
            if failure or study.finished(job):
                ended[job] = failure
            print(f"{job.name}: {failure or ('done' if study.finished(job) else 'stopped')}", flush=True)
            release()
    return ended


def begun(study: Study, jobs: Sequence[Job]) -> Iterable[Job]:
    """Those with something to tell"""
    return (job for job in jobs if (study.runs / job.name / LOOK).is_file())


def main() -> None:
    options = parsed()
    jobs = [Job(s, m, h) for m in options.methods for s in options.settings for h in options.heads]
    size = PAPER._replace(filters=options.filters, tasks=options.tasks, rate=options.rate)
    study = Study(options.runs, options.data, size, options.iterations, options.episodes, options.looks)
    ended = complete(study, jobs, options.together, options.budget)
    rows = [study.row(job, ended.get(job, "")) for job in begun(study, jobs)]
    if rows:
        path = results.write("starts", command(options), rows)
        draw_accuracies(rows, results.picture_of(path.stem))
        print(path)
    if len(ended) < len(jobs):
        sys.exit(UNFINISHED)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--heads", nargs="+", default=HEADS, choices=get_args(HeadInit))
    parser.add_argument("--iterations", type=int, default=2_000)
    parser.add_argument("--looks", type=int, default=10, help="validations of a run")
    parser.add_argument("--episodes", type=int, default=100, help="of a validation")
    parser.add_argument("--filters", type=int, help="of the net, if not as in the paper")
    parser.add_argument("--tasks", type=int, help="in an iteration, if not as in the paper")
    parser.add_argument("--rate", type=float, help="of the inner loop, if not as in the paper")
    parser.add_argument("--together", type=int, default=TOGETHER if uses_gpu("auto") else 1, help="runs at a time")
    parser.add_argument("--budget", type=float, help="seconds; what runs then is kept, and goes on")
    parser.add_argument("--runs", type=Path, default=Path("runs", "starts"), help="the folder for the runs")
    parser.add_argument("--data", type=Path, help="the data directory that has Omniglot")
    return parser.parse_args()


def command(options: argparse.Namespace) -> str:
    """As it was typed, but for where data and runs are, and how long it may take at a time"""
    names = ("settings", "methods", "heads", "iterations", "looks", "episodes", "filters", "tasks", "rate")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    flags = (
        f"--{name} {value if isinstance(value, int | float) else ' '.join(value)}" for name, value in given.items()
    )
    return " ".join(["python -m benchmarks.starts", *flags])


if __name__ == "__main__":
    main()
