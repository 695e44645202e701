"""How good a learner is: accuracy with its 95 % interval on new episodes, after every adaptation step."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor
from torch.func import vmap

from metastep.data import ImageSet
from metastep.data.episodes import Episodes, Rotations
from metastep.data.progress import Progress, silent
from metastep.errors import MetastepError
from metastep.fewshot.config import DataConfig, TrainConfig
from metastep.fewshot.learner import ONE_BY_ONE, Learner
from metastep.fewshot.sampling import Sampler, read_split, remembered
from metastep.fewshot.scores import Evaluation, StepScore
from metastep.fewshot.validation import in_chunks, judge_of, mean
from metastep.modules import evaluation_mode
from metastep.trees import Tree, tree_leaves
from metastep.windows import Task

EVALUATION_SEED = 600  # fixed, so that every method is judged by the same episodes


@dataclass(frozen=True)
class Request:
    """What to evaluate on; None is as the learner was trained to be judged."""

    ways: int | None = None
    shots: int | None = None
    queries: int | None = None
    rotations: Rotations | None = None
    steps: int | tuple[int, ...] | None = None
    exact_steps: bool = False
    """Every step evaluates its own gradient, also where training shared one among the steps of a window."""
    dataset: str | None = None
    split: str = "test"
    episodes: int = 600
    seed: int = EVALUATION_SEED
    one_by_one: bool = False
    """Each query is judged in a batch with the support alone, as `classify` does, and only when the inner loop ends."""

    def __post_init__(self) -> None:
        if self.episodes < 2:
            raise MetastepError(f"episodes = {self.episodes}: an interval needs at least 2.")


def evaluate(
    learner: Learner,
    request: Request = Request(),  # noqa: B008 - frozen
    data: Path | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """`data`: the directory that data sets are in"""
    weights = digest(learner)
    learner = with_steps(learner.changed(ways=request.ways), request.steps, request.exact_steps)
    episodes = requested_episodes(learner.config, request)
    asked = learner.config.data if request.dataset is None else DataConfig(request.dataset)
    images = read_split(asked, data, request.split)
    require_fitting(learner.config, images, asked.name)
    seen = remembered(asked, data)
    sampler = Sampler.of(images, episodes, request.seed, learner.device, tree_leaves(learner.meta)[0].dtype)

    began = time.perf_counter()
    right, finite = judge_steps(learner, sampler, request.episodes, progress, request.one_by_one)
    percent = 100 * right
    scores = [mean(column) for column in percent.T]
    return Evaluation(
        dataset=seen.name,
        split=request.split,
        ways=episodes.ways,
        shots=episodes.shots,
        queries=episodes.queries,
        rotations=episodes.rotations,
        windows=learner.loop.lengths,
        episodes=request.episodes,
        seed=request.seed,
        checkpoint=learner.checkpoint,
        weights=weights,
        accuracy=scores[-1].mean,
        interval=scores[-1].interval,
        by_step=tuple(
            StepScore(step, *score)
            for step, score in zip(judged_after(learner, request.one_by_one), scores, strict=True)
        ),
        not_finite=int((~finite).sum()),
        seconds=time.perf_counter() - began,
        accuracies=tuple(round(value, 4) for value in percent[:, -1].tolist()),
        fingerprint=seen.fingerprint,
        one_by_one=request.one_by_one or None,
    )


def with_steps(learner: Learner, steps: int | tuple[int, ...] | None, exact: bool = False) -> Learner:
    """The learner with another inner loop; `exact`: every step evaluates its own gradient.

    Steps that say the length of every window stand in place of the windows of training.
    """
    config = learner.config
    steps = config.test_steps if steps is None else steps
    if exact:
        steps = steps if isinstance(steps, int) else sum(steps)
    window = None if exact or not isinstance(steps, int) else config.method.window
    config = replace(config, method=replace(config.method, window=window), test=replace(config.test, steps=steps))
    return replace(learner, config=config)


def requested_episodes(config: TrainConfig, request: Request) -> Episodes:
    """Ways are the learner's; the rest as asked for"""
    asked = {name: getattr(request, name) for name in ("shots", "queries", "rotations")}
    return replace(config.test_episodes, **{name: value for name, value in asked.items() if value is not None})


def require_fitting(config: TrainConfig, images: ImageSet, name: str) -> None:
    channels, height, width = images.images.shape[2:]
    size = config.net.size
    if (channels, height, width) != (config.net.channels, size, size):
        raise MetastepError(
            f"pictures of {name!r} are {channels}×{height}×{width}, and this learner takes "
            f"{config.net.channels}×{size}×{size}. Evaluate it on data like that it was trained on."
        )


def judged_after(learner: Learner, one_by_one: bool) -> list[int]:
    """Steps after which a gradient is evaluated anew, from 0 to the last; or that alone, where judging takes long"""
    return list(accumulate(learner.loop.lengths, initial=0))[-1 if one_by_one else 0 :]


@torch.no_grad()
def judge_steps(
    learner: Learner, sampler: Sampler, episodes: int, progress: Progress = silent, one_by_one: bool = False
) -> tuple[Tensor, Tensor]:
    """(accuracy (episodes, steps), whether all predictions are finite (episodes)) of batch 0 of the sampler"""
    many = mapped(learner, one_by_one) if one_by_one else of_many(learner)
    found = []
    devices = [learner.device] if learner.device.type == "cuda" else []
    with evaluation_mode(learner.net), torch.random.fork_rng(devices=devices):
        torch.manual_seed(sampler.seed)  # for nets that draw numbers even so
        for part, tasks in in_chunks(learner, sampler, 0, episodes, batches=ONE_BY_ONE if one_by_one else 1):
            found.append(many(tasks))
            progress(part.stop, episodes)
    right, finite = (torch.cat(parts).cpu() for parts in zip(*found, strict=True))
    return right, finite


def of_many(learner: Learner) -> Callable[[Task], tuple[Tensor, Tensor]]:
    """Of several tasks at once. By hand on a CPU; on a GPU, kernels of full precision would be compiled for this"""
    by_hand = judge_of(learner) if learner.device.type == "cpu" else None
    if by_hand is None:
        return mapped(learner)

    def judged(tasks: Task) -> tuple[Tensor, Tensor]:
        found = by_hand.after_each_window(learner.meta, tasks)
        finite = torch.stack([metrics["loss"].isfinite() for metrics in found], 1)
        accuracy = torch.stack([metrics["accuracy"] for metrics in found], 1)
        return torch.where(finite, accuracy, 0.0).double(), finite.all(1)

    return judged


def mapped(learner: Learner, one_by_one: bool = False) -> Callable[[Task], tuple[Tensor, Tensor]]:
    kept = set(judged_after(learner, one_by_one))

    def judged(params: Tree, x: Tensor, support: Tensor) -> Tensor:
        return learner.logits_one_by_one(params, x, support) if one_by_one else learner.logits(params, x)

    def one(task: Task) -> tuple[Tensor, Tensor]:
        x, y = task.query
        params = (p for step, p in enumerate(learner.trajectory(task.support)) if step in kept)
        logits = torch.stack([judged(p, x, task.support[0]) for p in params])
        finite = logits.isfinite().all(-1)
        return ((logits.argmax(-1) == y) & finite).double().mean(-1), finite.all()

    return vmap(one, randomness="different")


def digest(learner: Learner) -> str:
    total = hashlib.sha256()
    for leaf in tree_leaves(learner.meta):
        total.update(leaf.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]
