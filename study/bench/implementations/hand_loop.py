"""The loop that people write by hand: task after task, `torch.autograd.grad` with `create_graph=True`."""

from functools import partial

import torch
from torch import Tensor
from torch.func import functional_call

from metastep.core.windows import window_lengths
from study.bench.cases import inner_of
from study.bench.implementations.task_by_task import Batch, averaged, loss
from study.bench.workload import BatchGradient, Workload, by_gradient


def meta_gradient(work: Workload) -> BatchGradient:
    return averaged(work, partial(task_gradient, work))


def task_gradient(work: Workload, support: Batch, query: Batch) -> tuple[Tensor, ...]:
    case, sgd = work.case, inner_of(work.case)
    first_order = case.method == "first_order"
    start = params = list(work.meta.values())
    velocity = [torch.zeros_like(p) for p in params]
    for length in window_lengths(case.steps, case.window):
        grads = torch.autograd.grad(loss(with_params(work, params), support), params, create_graph=not first_order)
        for _ in range(length):  # multi-step estimation: the same gradient for all of the window
            moved = zip(velocity, grads, params, strict=True)
            velocity = [sgd.momentum * v + g + sgd.weight_decay * p for v, g, p in moved]
            params = [p - sgd.lr * v for p, v in zip(params, velocity, strict=True)]
        if first_order:
            start = params = [p.detach().requires_grad_() for p in params]
            velocity = [v.detach() for v in velocity]
    return torch.autograd.grad(loss(with_params(work, params), query), start)


def with_params(work: Workload, params: list[Tensor]) -> "partial[Tensor]":
    return partial(functional_call, work.net, dict(zip(work.meta, params, strict=True)))


step = by_gradient(meta_gradient)
