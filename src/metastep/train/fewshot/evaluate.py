"""How good a few-shot learner is: accuracy on new episodes, after every adaptation step."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import cross_entropy

from metastep.core.modules import evaluation_mode
from metastep.core.trees import Tree, tree_leaves
from metastep.core.windows import Task
from metastep.data.draw import draw, real_counts
from metastep.data.episodes import Episodes, Rotations
from metastep.data.errors import Progress, silent
from metastep.data.pictures import Pictures
from metastep.errors import MetastepError
from metastep.step.chain.problem import FusedJudge
from metastep.step.ranks import ALONE, Ranks
from metastep.train.config import Data, FewShot
from metastep.train.evaluate import Judged, OnEpisodes, StepScore, digest, mean
from metastep.train.fewshot.learner import ONE_BY_ONE, Learner, Support, gradient_of
from metastep.train.remembered import data_of, remembered
from metastep.train.schema import EVALUATION_SEED

VALIDATION_SEED = 2020  # its own, so that runs with different seeds are judged by the same episodes


@dataclass(frozen=True)
class Sampler:
    """`sampler(k, tasks, first)`: tasks first, …, first + tasks − 1 of batch k, a number or a tensor on the device"""

    images: Tensor
    counts: Tensor | None
    episodes: Episodes
    seed: int
    dtype: torch.dtype

    @classmethod
    def of(
        cls, images: Pictures, episodes: Episodes, seed: int, device: torch.device | str, dtype: torch.dtype
    ) -> "Sampler":
        rows, sizes = images.rows()
        counts = real_counts(sizes, episodes, device, images.names)
        sampler = cls(rows.to(device), counts, episodes, seed, dtype)
        sampler(0, 1)  # says at once whether there are enough classes and images
        return sampler

    def __call__(self, k: int | Tensor, tasks: int, first: int = 0) -> Task:
        support, query = draw(self.images, self.episodes, self.seed, k, tasks, first, self.counts)
        return Task((support[0].to(self.dtype), support[1]), (query[0].to(self.dtype), query[1]))


def read_images(config: FewShot, root: Path | None, progress: Progress = silent) -> tuple[Pictures, Pictures | None]:
    """The classes to train on and, where they are wanted, those to validate with"""
    data = data_of(config.data, root, progress)
    return data.classes(config.data.split), data.classes("val") if config.validation.every else None


def fitted(config: FewShot, images: Pictures) -> FewShot:
    """The net takes pictures as the data has them"""
    channels, height, width = images.images.shape[1:]
    if height != width:
        raise MetastepError(f"pictures of {height}×{width}: nets here take square ones. Resize them.")
    return replace(config, net=replace(config.net, channels=channels, size=height))


CHUNKS = {"cpu": 4, "cuda": 100}  # episodes at a time, if the configuration does not say

# When queries are looked at: when the inner loop ends; before it and after each of its windows; or when it ends, each
# query in a batch with the support alone.
Look = Literal["at the end", "after each window", "one by one"]


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
) -> OnEpisodes:
    """`data`: the directory that data sets are in"""
    weights = digest(learner.meta)
    learner = with_steps(learner.changed(ways=request.ways), request.steps, request.exact_steps)
    episodes = requested_episodes(learner.config, request)
    asked = learner.config.data
    if request.dataset is not None:  # at the size that the learner knows
        asked = Data(request.dataset, size=learner.config.net.size)
    images = data_of(asked, data, field="--dataset").classes(request.split)
    require_fitting(learner.config, images, asked.serving(request.split).name)
    seen = remembered(asked.serving(request.split), data)
    sampler = Sampler.of(images, episodes, request.seed, learner.device, tree_leaves(learner.meta)[0].dtype)

    began = time.perf_counter()
    look: Look = "one by one" if request.one_by_one else "after each window"
    judged = judge(learner, sampler, request.episodes, look, progress=progress)
    scores = [mean(column) for column in 100 * judged.accuracy.cpu().T]
    return OnEpisodes(
        **judged.fields(seen, began),
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
        by_step=tuple(StepScore(step, *score) for step, score in zip(judged_after(learner, look), scores, strict=True)),
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
    alone = exact or not isinstance(steps, int)
    # Weights are of the windows of training.
    other = {"weights": None, **({"window": 1} if alone else {})}
    method = replace(config.method, **{name: value for name, value in other.items() if hasattr(config.method, name)})
    config = replace(config, method=method, test=replace(config.test, steps=steps))
    return replace(learner, config=config)


def requested_episodes(config: FewShot, request: Request) -> Episodes:
    """Ways are the learner's; the rest as asked for"""
    asked = {name: getattr(request, name) for name in ("shots", "queries", "rotations")}
    return replace(config.test_episodes, **{name: value for name, value in asked.items() if value is not None})


def require_fitting(config: FewShot, images: Pictures, name: str) -> None:
    channels, height, width = images.images.shape[1:]
    size = config.net.size
    if (channels, height, width) != (config.net.channels, size, size):
        raise MetastepError(
            f"pictures of {name!r} are {channels}×{height}×{width}, and this learner takes "
            f"{config.net.shape}. Evaluate it on data like that it was trained on."
        )


@torch.no_grad()
def judge(
    learner: Learner,
    sampler: Sampler,
    episodes: int,
    look: Look = "at the end",
    ranks: Ranks = ALONE,
    progress: Progress = silent,
) -> Judged:
    """Episodes 0, …, episodes − 1 of batch 0: with one sampler, always the same ones"""
    many = of_many(learner, look)
    batches = ONE_BY_ONE if look == "one by one" else 1
    # Ranks fill in their own episodes among zeros, so that a sum brings all of them together.
    shape = (episodes, len(judged_after(learner, look)))
    loss, accuracy = (torch.zeros(shape, dtype=torch.float64, device=learner.device) for _ in Judged._fields)
    devices = [learner.device] if learner.device.type == "cuda" else []
    with evaluation_mode(learner.net), torch.random.fork_rng(devices=devices):
        torch.manual_seed(sampler.seed)  # for nets that draw numbers even so
        for part, tasks in in_chunks(learner, sampler, *ranks.share(episodes), batches):
            loss[part], accuracy[part] = many(tasks)
            progress(part.stop, episodes)
    found: Judged = ranks.total(Judged(loss, torch.where(loss.isfinite(), accuracy, 0.0)))
    return found


def judged_after(learner: Learner, look: Look) -> list[int]:
    """Return how many inner steps were made at each look."""
    steps = list(accumulate(learner.loop.lengths, initial=0))
    return steps if look == "after each window" else steps[-1:]


def in_chunks(
    learner: Learner, sampler: Sampler, first: int, number: int, batches: int = 1
) -> Iterator[tuple[slice, Task]]:
    """Episodes first, …, first + number − 1 of batch 0 with their places, as many at a time as are computed together.

    batches: how many of its size each episode makes at once.
    """
    size = max(1, (learner.config.chunk_size or CHUNKS.get(learner.device.type, CHUNKS["cpu"])) // batches)
    for start in range(first, first + number, size):
        end = min(start + size, first + number)
        yield slice(start, end), sampler(0, end - start, start)


def of_many(learner: Learner, look: Look) -> Callable[[Task], Judged]:
    """Judge several tasks at once, by the fastest way."""
    # An evaluation is in full precision: on a GPU, kernels that training has not used would be compiled for it alone.
    slow = look == "one by one" or (look == "after each window" and learner.device.type != "cpu")
    config = learner.config.as_tested()
    by_hand = None if slow else gradient_of(config, learner.net).judge_by_hand(config.net.size)
    return judged_by(by_hand, learner.meta, look) if by_hand else mapped(learner, look)


def judged_by(by_hand: FusedJudge, meta: Tree, look: Look) -> Callable[[Task], Judged]:
    def judged(tasks: Task) -> Judged:
        found = (
            by_hand.after_each_window(meta, tasks) if look == "after each window" else [by_hand.at_the_end(meta, tasks)]
        )
        return Judged(*(torch.stack([metrics[name] for metrics in found], 1).double() for name in Judged._fields))

    return judged


def mapped(learner: Learner, look: Look) -> Callable[[Task], Judged]:
    def one(task: Task) -> Judged:
        (near, _), (x, y) = task
        apart = (near,) if look == "one by one" else ()
        ask = learner.logits_one_by_one if apart else learner.logits
        logits = torch.stack([ask(params, x, *apart) for params in looked_at(learner, task.support, look)]).double()
        loss = cross_entropy(logits.transpose(1, 2), y.expand(len(logits), -1), reduction="none").mean(-1)
        return Judged(loss, (logits.argmax(-1) == y).double().mean(-1))

    return vmap(one, randomness="different")


def looked_at(learner: Learner, support: Support, look: Look) -> Iterator[Tree]:
    """φ at each look"""
    if look == "after each window":
        kept = set(judged_after(learner, look))
        yield from (params for step, params in enumerate(learner.trajectory(support)) if step in kept)
    else:
        yield learner.adapted(support)
