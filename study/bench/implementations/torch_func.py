"""torch.func put together by hand: `vmap(grad(…))` through the unrolled inner loop, with all steps stored.

In that order, and with the mean after it. The order of PyTorch's own example, a gradient of the mean of a mapped loss,
is silently wrong with BatchNorm (up to some per cent), so it is not what is measured here.
"""

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from metastep.core.trees import map_tree
from metastep.core.windows import Task, window_lengths
from study.bench.cases import inner_of
from study.bench.workload import BatchGradient, Gradients, Workload, by_gradient


def meta_gradient(work: Workload) -> BatchGradient:
    case = work.case
    of_task = first_order(work) if case.method == "first_order" else grad(unrolled(work))
    mapped = vmap(of_task, in_dims=(None, 0), chunk_size=case.chunk)

    def gradient(tasks: Task) -> Gradients:
        with torch.no_grad():
            return {name: g.mean(0) for name, g in mapped(work.meta, tasks).items()}

    return gradient


def unrolled(work: Workload) -> Any:
    return lambda meta, task: loss(work, adapted(work, meta, task), task.query)


def first_order(work: Workload) -> Any:
    return lambda meta, task: grad(lambda params: loss(work, params, task.query))(adapted(work, meta, task))


def adapted(work: Workload, meta: Gradients, task: Task) -> Gradients:
    case, sgd = work.case, inner_of(work.case)
    params, velocity = meta, map_tree(torch.zeros_like, meta)
    for length in window_lengths(case.steps, case.window):
        grads = grad(lambda params: loss(work, params, task.support))(params)
        for _ in range(length):
            velocity = map_tree(lambda v, g, p: sgd.momentum * v + g + sgd.weight_decay * p, velocity, grads, params)
            params = map_tree(lambda p, v: p - sgd.lr * v, params, velocity)
    return params


def loss(work: Workload, params: Gradients, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return cross_entropy(functional_call(work.net, params, x), y)


step = by_gradient(meta_gradient)
