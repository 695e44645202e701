"""How good a learner or a net is: what both jobs measure, its file in the folder of a run, and fair differences.

`train.fewshot.evaluate` measures on episodes, `train.transfer.evaluate` on labelled pictures.
"""

import hashlib
import json
import time
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from metastep.core.trees import Tree, tree_leaves
from metastep.train.io import RunError, explained, problem, read_file, replace_file, require_no_link
from metastep.train.schema import EVALUATION_SEED, AnyData
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


class Judged(NamedTuple):
    """Of each episode or picture and each look at it, float64 (number, looks); what is not finite is not right"""

    loss: Tensor
    accuracy: Tensor

    def row(self, part: str) -> dict[str, float]:
        """Return it for the metrics of a run, under other names than training: TensorBoard would join the curves."""
        loss, score = mean(self.loss[:, -1]), mean(self.accuracy[:, -1])
        return {f"{part}_loss": loss.mean, f"{part}_accuracy": score.mean, f"{part}_interval": score.interval}

    def fields(self, data: AnyData, began: float) -> dict[str, Any]:
        """Return what an evaluation says of it, in percent."""
        percent = 100 * self.accuracy[:, -1].cpu()
        accuracy, interval = mean(percent)
        return {
            "dataset": data.name, "fingerprint": data.fingerprint, "accuracy": accuracy, "interval": interval,
            "accuracies": tuple(round(value, 4) for value in percent.tolist()),
            "not_finite": int((~self.loss.isfinite()).any(1).sum()), "seconds": time.perf_counter() - began,
        }  # fmt: skip


@checked(frozen=True)
class StepScore:
    """In percent, after so many adaptation steps"""

    step: int
    accuracy: float
    interval: float


@checked(frozen=True)
class ClassScore:
    """In percent, on the pictures of one class"""

    name: str
    accuracy: float
    interval: float
    pictures: int


@checked(frozen=True, kw_only=True)
class Evaluation:
    """What both jobs have: a mean over episodes, or over pictures."""

    unit: ClassVar[str]
    """What there are accuracies of"""

    dataset: str
    split: str
    checkpoint: str
    weights: str
    """A digest of the parameters, to tell when they have changed since"""
    accuracy: float
    """Mean, in percent"""
    interval: float
    """1.96 · σ / √number: half the width of the 95 % interval"""
    seconds: float
    accuracies: tuple[float, ...]
    """Of each episode or picture, for paired comparisons"""
    not_finite: int
    """Episodes or pictures with predictions that are no numbers; these count as wrong"""
    fingerprint: str | None = None
    """Of the pictures, where they are a user's own"""

    @property
    def pictures(self) -> str:
        """What they are, wherever they are"""
        return self.fingerprint or self.dataset

    @property
    def task(self) -> tuple[object, ...]:
        """Return what makes two evaluations comparable, one by one."""
        return self.unit, self.pictures, self.split, len(self.accuracies)

    @property
    def setting(self) -> str:
        """In words"""
        return ""

    @property
    def short(self) -> str:
        """For the name of a file"""
        return self.split


@checked(frozen=True, kw_only=True)
class OnEpisodes(Evaluation):
    """Of a few-shot learner."""

    unit: ClassVar[str] = "episode"

    ways: int
    shots: int
    queries: int
    rotations: str
    windows: tuple[int, ...]
    """How many steps share each gradient"""
    episodes: int
    seed: int
    by_step: tuple[StepScore, ...]
    one_by_one: bool | None = None
    """Whether each query was judged in a batch with the support alone; else all of an episode were one batch"""

    @property
    def steps(self) -> int:
        return sum(self.windows)

    @property
    def task(self) -> tuple[object, ...]:
        drawn = self.pictures, self.split, self.ways, self.shots, self.queries, self.rotations, self.episodes, self.seed
        return (*drawn, "one by one") if self.one_by_one else drawn

    @property
    def setting(self) -> str:
        """Name it with what differs from the usual evaluation."""
        turned = [f"turned {self.rotations}"] if self.rotations != "none" else []
        drawn = [f"seed {self.seed}"] if self.seed != EVALUATION_SEED else []
        queries = "1 query" if self.queries == 1 else f"{self.queries} queries"
        usual = [f"{self.ways}-way {self.shots}-shot", f"{queries} of each class"]
        return ", ".join(usual + turned + drawn + (["one by one"] if self.one_by_one else []))

    @property
    def short(self) -> str:
        return f"{self.split}-{self.ways}w{self.shots}s-{self.steps}steps"


@checked(frozen=True, kw_only=True)
class OnPictures(Evaluation):
    """Of the target net of a transfer run."""

    unit: ClassVar[str] = "picture"

    epoch: int
    """After how many epochs the checkpoint was written"""
    classes: tuple[ClassScore, ...]

    @property
    def ways(self) -> int:
        return len(self.classes)

    @property
    def setting(self) -> str:
        return f"{self.ways} classes, after epoch {self.epoch}"


def digest(tree: Tree) -> str:
    """Return a digest of tensors, which shows whether they have changed."""
    total = hashlib.sha256()
    for leaf in tree_leaves(tree):
        total.update(leaf.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


def to_json(evaluation: Evaluation) -> str:
    return json.dumps({"format": FORMAT, "version": VERSION, **to_plain(evaluation)}, indent=1, ensure_ascii=True)


def save(run: Path, evaluation: Evaluation) -> Path:
    """Write it into the run's folder: one file for each checkpoint and setting, so that a repeat replaces it."""
    folder = run / FOLDER
    require_no_link(folder)
    with explained(folder, "made"):
        folder.mkdir(exist_ok=True)
    path = folder / f"{file_name(evaluation)}.json"
    replace_file(path, (to_json(evaluation) + "\n").encode())
    return path


def file_name(evaluation: Evaluation) -> str:
    """Return a name of what a reader wants to know, and a digest of the rest."""
    told = (*evaluation.task, getattr(evaluation, "windows", ()))
    rest = hashlib.sha256(repr(told).encode(errors="surrogateescape")).hexdigest()[:8]
    return f"{evaluation.short}-{evaluation.checkpoint or 'learner'}-{rest}"


def read_evaluations(run: Path) -> list[OnEpisodes | OnPictures]:
    return [read_evaluation(path) for path in sorted((run / FOLDER).glob("*.json"))]


def read_evaluation(path: Path) -> OnEpisodes | OnPictures:
    try:
        content = json.loads(read_file(path))
        if not isinstance(content, dict) or (content.pop("format", None), content.pop("version", None)) != (
            FORMAT,
            VERSION,
        ):
            raise ValueError(f"it is not of format {FORMAT!r}, version {VERSION}")
        return from_plain(OnEpisodes, content) if "episodes" in content else from_plain(OnPictures, content)
    except (ValueError, RecursionError) as cause:
        raise problem(RunError, path, f"is no evaluation ({cause})", "Delete it, and evaluate again") from cause


def paired_difference(evaluation: Evaluation, other: Evaluation) -> Mean | None:
    """Mean of (evaluation − other), one by one, and its interval; None where they are of other episodes or pictures"""
    if evaluation.task != other.task:
        return None
    return mean(torch.tensor(evaluation.accuracies) - torch.tensor(other.accuracies))
