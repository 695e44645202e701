"""What an evaluation found, and its file in the folder of a run."""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from metastep.train.errors import RunError, problem
from metastep.train.fewshot.choices import EVALUATION_SEED
from metastep.train.io import explained, read_file, replace_file, require_no_link
from metastep.train.validated import checked, from_plain, to_plain

FORMAT, VERSION = "metastep evaluation", 1
FOLDER = "evaluations"


class Mean(NamedTuple):
    mean: float
    interval: float
    """Half the width of the 95 % interval of the mean"""


def mean(values: Tensor) -> Mean:
    """1.96 standard errors, from the standard deviation of the population, as few-shot papers do"""
    values = values.double()
    return Mean(float(values.mean()), float(1.96 * values.std(correction=0) / len(values) ** 0.5))


@checked(frozen=True)
class StepScore:
    """In percent, after so many adaptation steps"""

    step: int
    accuracy: float
    interval: float


@checked(frozen=True)
class Evaluation:
    dataset: str
    split: str
    ways: int
    shots: int
    queries: int
    rotations: str
    windows: tuple[int, ...]
    """How many steps share each gradient"""
    episodes: int
    seed: int
    checkpoint: str
    weights: str
    """A digest of the meta-parameters, to tell when they have changed since"""
    accuracy: float
    """Mean over episodes, in percent"""
    interval: float
    """1.96 · σ / √episodes: half the width of the 95 % interval"""
    by_step: tuple[StepScore, ...]
    not_finite: int
    """Episodes with predictions that are no numbers; these count as wrong"""
    seconds: float
    accuracies: tuple[float, ...]
    """Of each episode, for paired comparisons"""
    fingerprint: str | None = None
    """Of the pictures, where they are a user's own"""
    one_by_one: bool | None = None
    """Whether each query was judged in a batch with the support alone; else all of an episode were one batch"""

    @property
    def steps(self) -> int:
        return sum(self.windows)

    @property
    def pictures(self) -> str:
        """What they are, wherever they are"""
        return self.fingerprint or self.dataset

    @property
    def peculiar(self) -> list[str]:
        """What sets it apart from what is mostly done, in words"""
        turned = [f"turned {self.rotations}"] if self.rotations != "none" else []
        drawn = [f"seed {self.seed}"] if self.seed != EVALUATION_SEED else []
        return turned + drawn + (["one by one"] if self.one_by_one else [])

    @property
    def task(self) -> tuple[object, ...]:
        """What makes two evaluations comparable, episode by episode"""
        drawn = self.pictures, self.split, self.ways, self.shots, self.queries, self.rotations, self.episodes, self.seed
        return (*drawn, "one by one") if self.one_by_one else drawn


def to_json(evaluation: Evaluation) -> str:
    return json.dumps({"format": FORMAT, "version": VERSION, **to_plain(evaluation)}, indent=1, ensure_ascii=True)


def save(run: Path, evaluation: Evaluation) -> Path:
    """In the folder of the run: one file for each checkpoint and setting, so that doing it again replaces it"""
    folder = run / FOLDER
    require_no_link(folder)
    with explained(folder, "made"):
        folder.mkdir(exist_ok=True)
    path = folder / f"{file_name(evaluation)}.json"
    replace_file(path, (to_json(evaluation) + "\n").encode())
    return path


def file_name(evaluation: Evaluation) -> str:
    """What a reader wants to know, and a digest of the rest"""
    rest = hashlib.sha256(repr((*evaluation.task, evaluation.windows)).encode(errors="surrogateescape")).hexdigest()[:8]
    setting = f"{evaluation.ways}w{evaluation.shots}s-{evaluation.steps}steps"
    return f"{evaluation.split}-{setting}-{evaluation.checkpoint or 'learner'}-{rest}"


def read_evaluations(run: Path) -> list[Evaluation]:
    return [read_evaluation(path) for path in sorted((run / FOLDER).glob("*.json"))]


def read_evaluation(path: Path) -> Evaluation:
    try:
        content = json.loads(read_file(path))
        if not isinstance(content, dict) or (content.pop("format", None), content.pop("version", None)) != (
            FORMAT,
            VERSION,
        ):
            raise ValueError(f"it is not of format {FORMAT!r}, version {VERSION}")
        return from_plain(Evaluation, content)
    except (ValueError, RecursionError) as cause:
        raise problem(RunError, path, f"is no evaluation ({cause})", "Delete it, and evaluate again") from cause


def paired_difference(evaluation: Evaluation, other: Evaluation) -> Mean | None:
    """Mean of (evaluation − other), episode by episode, and its interval; None where the episodes differ"""
    if evaluation.task != other.task:
        return None
    return mean(torch.tensor(evaluation.accuracies) - torch.tensor(other.accuracies))
