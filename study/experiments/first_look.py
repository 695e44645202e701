"""What a learner does before it has learned anything: how its first tasks and its first meta-gradient come out."""

import math

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import cross_entropy

from metastep.core.problems import accuracy
from metastep.core.trees import Tree, norm, subtract
from metastep.core.windows import Task
from metastep.data.pictures import Pictures
from metastep.step.ranks import ALONE
from metastep.train.config import FewShot
from metastep.train.fewshot.job import prepare
from metastep.train.fewshot.learner import Learner

HEAD = "head"  # how the names of the last layer's parameters begin


@torch.no_grad()
def first_look(config: FewShot, images: Pictures) -> dict[str, float | None]:
    """Means over the tasks of the first iteration, None where they are not finite; of the queries, all but the last"""
    job = prepare(config, images, None, ALONE)
    learner, gradient, draw = job.learner, job.gradient, job.draw
    batch = draw(0, config.tasks)
    grad = gradient.unchecked(learner.meta, batch).grad
    size = config.chunk_size or config.tasks
    seen = vmap(lambda task: adaptation(learner, task), chunk_size=size)(batch)
    lengths = {"gradient_norm": norm(grad), "head_gradient_norm": norm(part(grad, True))}
    found = {name: float(values.mean()) for name, values in (seen | lengths).items()}
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def adaptation(learner: Learner, task: Task) -> dict[str, Tensor]:
    """Return what the inner loop does to one task, and to its features (all before the head)."""
    x, y = task.query
    adapted = learner.adapted(task.support)
    before, after = learner.logits(learner.meta, x), learner.logits(adapted, x)
    features = part(learner.meta, False)
    return {
        "loss_before": cross_entropy(before, y),
        "loss_after": cross_entropy(after, y),
        "accuracy_after": accuracy(after, y),
        "ways_predicted": predicted(after),
        "features_moved": norm(subtract(part(adapted, False), features)) / norm(features),
    }


def part(params: Tree, head: bool) -> Tree:
    return {name: value for name, value in params.items() if name.startswith(HEAD) == head}


def predicted(logits: Tensor) -> Tensor:
    """Share of the ways that are predicted for any picture"""
    ways = torch.arange(logits.shape[-1], device=logits.device)
    return (logits.argmax(-1, keepdim=True) == ways).any(0).to(logits.dtype).mean()
