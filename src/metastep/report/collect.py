"""What a report is made of: what a run's folder holds, and what its learner shows when it is asked."""

from dataclasses import dataclass, replace
from pathlib import Path

from metastep.core.windows import window_lengths
from metastep.data.errors import printable
from metastep.data.names import without_place
from metastep.errors import MetastepError
from metastep.report.probes import Probed, probe
from metastep.report.reported import Point, Reported
from metastep.train.config import FewShot
from metastep.train.fewshot.choices import EVALUATION_SEED
from metastep.train.fewshot.evaluate import digest
from metastep.train.fewshot.learner import Learner
from metastep.train.fewshot.longer import iterations_made
from metastep.train.fewshot.scores import Evaluation, read_evaluations
from metastep.train.metrics import read_metrics
from metastep.train.run import Run


@dataclass(frozen=True)
class RunReport(Reported):
    config: FewShot
    iterations: int
    evaluations: list[Evaluation]
    weights: dict[str, str]
    """Of each checkpoint that there is now, a digest as evaluations have it"""
    probed: Probed | None
    note: str
    """Why nothing could be asked of the learner"""

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
        """The evaluation that speaks for the run: of trained weights, on test classes, as it is to be judged"""

        ours, windows = self.config.test_episodes, window_lengths(self.config.test_steps, self.config.window)

        def far(e: Evaluation) -> tuple[object, ...]:
            setting = (e.ways, e.shots) != (ours.ways, ours.shots)
            other = setting, e.pictures != self.config.data.pictures, self.is_earlier(e)
            drawn = (e.queries, e.rotations, e.seed) != (ours.queries, ours.rotations, EVALUATION_SEED)
            judged = bool(e.one_by_one), e.windows != windows, drawn, -e.episodes
            return e.checkpoint == "untrained", e.split != "test", *other, *judged

        return min(self.evaluations, key=far, default=None)

    def is_earlier(self, evaluation: Evaluation) -> bool:
        """Whether its checkpoint has changed since"""
        trained = evaluation.checkpoint in ("best", "last")
        return trained and bool(self.weights) and self.weights.get(evaluation.checkpoint) != evaluation.weights

    @property
    def task(self) -> str:
        data = self.config.data
        return f"{printable(data.name)} {data.ways}-way {data.shots}-shot"


def collect(folder: Path, name: str, colour: str, episodes: int, net: str | None, data: Path | None) -> RunReport:
    run = Run.open(folder)
    config = run.config(FewShot).shared
    rows = read_metrics(run.metrics_path) if run.metrics_path.exists() else []
    evaluations = [replace(each, dataset=without_place(each.dataset)) for each in read_evaluations(folder)]
    weights, probed, note = {}, None, ""
    try:
        learners = checkpoints_of(folder, net if config.net.is_users else None)
        weights = {learner.checkpoint: digest(learner) for learner in learners}
        probed = probe(learners[0], episodes, data)
    except MetastepError as error:  # no checkpoint yet, a net that is not to be imported, data that is not here
        note = printable(str(error))
    iterations = max([iterations_made(run), *(int(row["step"]) for row in rows)])  # a run under way is further
    return RunReport(name, colour, config, rows, iterations, evaluations, weights, probed, note)


def checkpoints_of(folder: Path, net: str | None) -> list[Learner]:
    """The best one first, where there is one"""
    best = Learner.load(folder, "best", net)
    return [best] if best.checkpoint == "last" else [best, Learner.load(folder, "last", net)]
