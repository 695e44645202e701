"""How good a learner is on episodes that it was not trained on: adapt to the support, measure the queries."""

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import cross_entropy

from metastep.core.modules import evaluation_mode
from metastep.core.trees import Tree
from metastep.core.windows import Task
from metastep.data.progress import Progress, silent
from metastep.step.chain.problem import FusedJudge
from metastep.step.ranks import ALONE, Ranks
from metastep.train.fewshot.building import gradient_of
from metastep.train.fewshot.learner import ONE_BY_ONE, Learner, Support
from metastep.train.fewshot.sampling import Sampler

CHUNKS = {"cpu": 4, "cuda": 100}  # episodes at a time, if the configuration does not say

# When queries are looked at: when the inner loop ends; before it and after each of its windows; or when it ends, each
# query in a batch with the support alone.
Look = Literal["at the end", "after each window", "one by one"]


class Judged(NamedTuple):
    """Of each episode and look, float64 (episodes, looks); what is not finite is not right"""

    loss: Tensor
    accuracy: Tensor


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
    """How many inner steps were made at each look"""
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
    """Of several tasks at once, by the fastest way"""
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
