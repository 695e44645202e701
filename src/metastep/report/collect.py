"""What a report is made of: what a run's folder holds, and what its learner shows when it is asked."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol

from metastep.data.errors import printable
from metastep.data.remembering import without_place
from metastep.errors import MetastepError
from metastep.fewshot.config import METHOD_OPTIONS, TrainConfig
from metastep.fewshot.evaluate import digest
from metastep.fewshot.learner import Learner
from metastep.fewshot.longer import iterations_made
from metastep.fewshot.scores import Evaluation, read_evaluations
from metastep.report.probes import Probed, probe
from metastep.runs import Run, read_metrics, to_plain

COLOURS = ("#2f81f7", "#e08600", "#1a9e77", "#c44fa3", "#d1495b", "#3fa7c4", "#8f7a10", "#7c8290")  # on white and black

UNSET = "—"

Point = tuple[float, ...]  # x, y, and where there is one, half the width of the interval


class Curved(Protocol):
    """What a figure needs of a run"""

    @property
    def colour(self) -> str: ...

    def curve(self, kind: str, *keys: str) -> list[Point]: ...


def curve_of(rows: Sequence[dict[str, Any]], kind: str, *keys: str) -> list[Point]:
    """Finite points of the rows of one kind, as the keys say"""
    fitting = [row for row in rows if row.get("kind") == kind and all(key in row for key in keys)]
    points = [tuple(float(row[key]) for key in keys) for row in fitting]
    return [point for point in points if all(map(math.isfinite, point))]


@dataclass(frozen=True)
class RunReport:
    name: str
    colour: str
    config: TrainConfig
    iterations: int
    rows: list[dict[str, Any]]
    evaluations: list[Evaluation]
    weights: dict[str, str]
    """Of each checkpoint that there is now, a digest as evaluations have it"""
    probed: Probed | None
    note: str
    """Why nothing could be asked of the learner"""

    def curve(self, kind: str, *keys: str) -> list[Point]:
        return curve_of(self.rows, kind, *keys)

    @property
    def seconds_per_iteration(self) -> float | None:
        points = self.curve("train", "step", "seconds")
        return points[-1][1] / points[-1][0] if points and points[-1][0] else None

    @property
    def best_validation(self) -> Point | None:
        """(step, accuracy, interval) in percent"""
        points = self.curve("validation", "step", "validation_accuracy", "validation_interval")
        best = max(points, key=lambda point: point[1], default=None)
        return best and (best[0], 100 * best[1], 100 * best[2])

    @property
    def headline(self) -> Evaluation | None:
        """The evaluation that speaks for the run: of trained weights, on test classes, the setting of training"""

        def far(e: Evaluation) -> tuple[bool, ...]:
            ours = self.config.test_episodes
            setting = (e.ways, e.shots) != (ours.ways, ours.shots)
            other = setting, e.pictures != self.config.data.pictures, self.is_earlier(e)
            return e.checkpoint == "untrained", e.split != "test", *other, bool(e.one_by_one)

        return min(self.evaluations, key=far, default=None)

    def is_earlier(self, evaluation: Evaluation) -> bool:
        """Whether its checkpoint has changed since"""
        trained = evaluation.checkpoint in ("best", "last")
        return trained and bool(self.weights) and self.weights.get(evaluation.checkpoint) != evaluation.weights

    @property
    def method(self) -> str:
        """With its options, as they are called in the configuration"""
        options = {name: getattr(self.config.method, name) for name in sorted(METHOD_OPTIONS[self.config.method.name])}
        given = [f"{name} {value}" for name, value in options.items() if value is not None]
        return " ".join([self.config.method.name, f"({', '.join(given)})" if given else ""]).strip()

    @property
    def task(self) -> str:
        data = self.config.data
        return f"{printable(data.name)} {data.ways}-way {data.shots}-shot"

    @property
    def settings(self) -> dict[str, str]:
        return dict(flat(to_plain(self.config)))


def collect(folder: Path, name: str, colour: str, episodes: int, net: str | None, data: Path | None) -> RunReport:
    run = Run.open(folder)
    config = run.config(TrainConfig).shared
    rows = read_metrics(run.metrics_path) if run.metrics_path.exists() else []
    evaluations = [replace(each, dataset=without_place(each.dataset)) for each in read_evaluations(folder)]
    weights, probed, note = {}, None, ""
    try:
        learners = checkpoints_of(folder, net)
        weights = {learner.checkpoint: digest(learner) for learner in learners}
        probed = probe(learners[0], episodes, data)
    except MetastepError as error:  # no checkpoint yet, a net that is not to be imported, data that is not here
        note = printable(str(error))
    iterations = max([iterations_made(run), *(int(row["step"]) for row in rows)])  # a run under way is further
    return RunReport(name, colour, config, iterations, rows, evaluations, weights, probed, note)


def checkpoints_of(folder: Path, net: str | None) -> list[Learner]:
    """The best one first, where there is one"""
    best = Learner.load(folder, "best", net)
    return [best] if best.checkpoint == "last" else [best, Learner.load(folder, "last", net)]


def named(folders: Sequence[Path]) -> list[tuple[Path, str, str]]:
    """(folder, name, colour): the last part of the path where that tells all apart, else all of it"""
    short = [printable(folder.resolve().name) for folder in folders]
    names = short if len(set(short)) == len(short) else [printable(folder) for folder in folders]
    return list(zip(folders, names, cycle(COLOURS)))


def flat(plain: Any, at: str = "") -> list[tuple[str, str]]:
    """A configuration as lines: 'inner.lr', '0.4'"""
    if isinstance(plain, dict):
        return [line for key, value in plain.items() for line in flat(value, f"{at}.{key}".lstrip("."))]
    text = UNSET if plain is None else ", ".join(map(str, plain)) if isinstance(plain, list) else str(plain)
    return [(at, printable(text))]
