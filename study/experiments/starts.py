"""Find which start of the head serves all four settings of the paper, and what a start does.

Trains on Omniglot's training classes alone, at the paper's inner rate of 0.4, and validates on the classes that are
held out of its 1,200. On a CPU, or without Omniglot, it can only be tried out: --filters 8 --tasks 2 --iterations 4.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

from metastep.cli.common import UNFINISHED
from metastep.nets.conv4 import HeadInit
from metastep.train.config import FewShot
from metastep.train.fewshot.evaluate import fitted, read_images
from metastep.train.io import replace_file
from study.claims.outcomes import position
from study.experiments import arguments, trials
from study.experiments.first_look import first_look
from study.experiments.settings import PAPER, Size, configured, data_set

SETTINGS, METHODS = ("5w1s", "20w1s", "5w5s", "20w5s"), ("multistep4", "maml")  # those that cost least first
HEADS: tuple[HeadInit, ...] = ("zero", "default", "xavier", "kaiming")
LOOK = "first_look.json"  # in the folder of a run


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

    def config(self, job: Job) -> FewShot:
        config = configured(data_set(self.data), job.setting, job.method, self.size, self.iterations)
        config = replace(config, net=config.net.changed(head_init=job.head), precision=trials.usual_precision())
        return trials.validated(config, self.iterations, self.looks, self.episodes)

    def complete(self, jobs: Sequence[Job], places: int, budget: float | None) -> dict[str, str]:
        works = {job.name: partial(self.run, job) for job in jobs}
        return trials.complete(works, self.finished, places, budget)

    def run(self, job: Job) -> str:
        """A trial, and a look at its start"""
        config, folder = self.config(job), self.runs / job.name
        failure = trials.trained(config, folder, self.data)
        if not (folder / LOOK).is_file():
            images, _ = read_images(config, self.data)
            replace_file(folder / LOOK, json.dumps(first_look(fitted(config, images), images)).encode())
        return failure

    def has_begun(self, name: str) -> bool:
        """So that it has something to tell"""
        return (self.runs / name / LOOK).is_file()

    def finished(self, name: str) -> bool:
        return self.has_begun(name) and position(self.runs / name).finished

    def row(self, job: Job, failure: str = "") -> dict[str, Any]:
        folder, setting = self.runs / job.name, f"{data_set(self.data)}-{job.setting}"
        look: dict[str, Any] = json.loads((folder / LOOK).read_text())
        return trials.few_shot_row(folder, setting, job.method, failure) | look


def main() -> None:
    options = parsed()
    jobs = [Job(s, m, h) for m in options.methods for s in options.settings for h in options.heads]
    size = PAPER._replace(filters=options.filters, tasks=options.tasks, rate=options.rate)
    study = Study(options.runs, options.data, size, options.iterations, options.episodes, options.looks)
    ended = study.complete(jobs, options.together, options.budget)
    rows = [study.row(job, ended.get(job.name, "")) for job in jobs if study.has_begun(job.name)]
    trials.tell("starts", arguments.command("starts", options), rows)
    if len(ended) < len(jobs):
        sys.exit(UNFINISHED)


def parsed() -> argparse.Namespace:
    parser = arguments.parser("starts", __doc__)
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--heads", nargs="+", default=HEADS, choices=get_args(HeadInit))
    trials.add_options(parser, iterations=2_000, runs="starts")
    parser.add_argument("--filters", type=int, help="of the net, if not as in the paper")
    parser.add_argument("--tasks", type=int, help="in an iteration, if not as in the paper")
    parser.add_argument("--rate", type=float, help="of the inner loop, if not as in the paper")
    arguments.add_data(parser)
    return parser.parse_args()
