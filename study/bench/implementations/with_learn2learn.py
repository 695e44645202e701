"""learn2learn (0.2): `MAML(net)`, then `clone()` and `adapt(loss)` for each task. Its inner loop is plain SGD."""

from functools import partial

import learn2learn
import torch
from torch import Tensor

from study.bench.cases import inner_of
from study.bench.implementations.task_by_task import Batch, averaged, loss
from study.bench.workload import BatchGradient, Workload, by_gradient


def meta_gradient(work: Workload) -> BatchGradient:
    first_order = work.case.method == "first_order"
    maml = learn2learn.algorithms.MAML(work.net, inner_of(work.case).lr, first_order=first_order)
    return averaged(work, partial(task_gradient, work, maml))


def task_gradient(
    work: Workload, maml: learn2learn.algorithms.MAML, support: Batch, query: Batch
) -> tuple[Tensor, ...]:
    learner = maml.clone()
    for _ in range(work.case.steps):
        learner.adapt(loss(learner, support))
    return torch.autograd.grad(loss(learner, query), list(work.meta.values()))


step = by_gradient(meta_gradient)
