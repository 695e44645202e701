"""How good a learner is on episodes that it was not trained on."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import cross_entropy

from metastep.fewshot.building import asked_of
from metastep.fewshot.distributed import ALONE, Ranks
from metastep.fewshot.learner import Learner
from metastep.fewshot.sampling import Sampler
from metastep.fused import FusedJudge
from metastep.modules import evaluation_mode
from metastep.paths import judge_by_hand
from metastep.problems import accuracy
from metastep.windows import Task

CHUNKS = {"cpu": 4, "cuda": 100}  # episodes at a time, if the configuration does not say


class Judged(NamedTuple):
    """Of each episode"""

    loss: Tensor
    accuracy: Tensor


class Mean(NamedTuple):
    mean: float
    interval: float
    """Half the width of the 95 % interval of the mean"""


@torch.no_grad()
def judge(learner: Learner, sampler: Sampler, episodes: int, ranks: Ranks = ALONE) -> Judged:
    """Adapt to the support of `episodes` episodes, always the same ones (batch 0), and measure their queries."""
    many = of_many(learner)
    # Ranks fill in their own episodes among zeros, so that a sum brings all of them together.
    losses, accuracies = (torch.zeros(episodes, device=learner.device) for _ in Judged._fields)
    with evaluation_mode(learner.net):
        for part, tasks in in_chunks(learner, sampler, *ranks.share(episodes)):
            losses[part], accuracies[part] = many(tasks)
    return ranks.total(Judged(losses, accuracies))  # type: ignore[no-any-return]


def in_chunks(
    learner: Learner, sampler: Sampler, first: int, number: int, batches: int = 1
) -> Iterator[tuple[slice, Task]]:
    """Episodes first, …, first + number − 1 of batch 0, with their places: as many at a time as are computed together.

    batches: how many batches of its own size each episode becomes, all computed at once.
    """
    size = max(1, (learner.config.chunk_size or CHUNKS.get(learner.device.type, CHUNKS["cpu"])) // batches)
    for start in range(first, first + number, size):
        end = min(start + size, first + number)
        yield slice(start, end), sampler(0, end - start, start)


def of_many(learner: Learner) -> Callable[[Task], Judged]:
    """Of several tasks at once, by the fastest way"""
    by_hand = judge_of(learner)
    return (lambda tasks: Judged(**by_hand.at_the_end(learner.meta, tasks))) if by_hand else mapped(learner)


def judge_of(learner: Learner) -> FusedJudge | None:
    """By hand, with the inner loop that the learner is judged with; None where there is no such way"""
    return judge_by_hand(asked_of(learner.config.as_tested(), learner.net))


def mapped(learner: Learner) -> Callable[[Task], Judged]:
    def one(task: Task) -> Judged:
        x, y = task.query
        logits = learner.logits(learner.adapted(task.support), x)
        return Judged(cross_entropy(logits, y), accuracy(logits, y))

    return vmap(one, randomness="different")


def mean(values: Tensor) -> Mean:
    """1.96 standard errors, from the standard deviation of the population, as few-shot papers do"""
    values = values.double()
    return Mean(float(values.mean()), float(1.96 * values.std(correction=0) / len(values) ** 0.5))
