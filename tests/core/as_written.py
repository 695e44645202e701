"""Regression by one layer, and its meta-gradient as everybody writes it, for tests of what people write."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

import metastep as ms

MAML, SGD = ms.MAML(), ms.SGD(0.1)


def gradient_of(problem: Any, steps: Any = 2, method: Any = MAML, inner: Any = SGD, **options: Any) -> Any:
    return ms.MetaGradient(problem, method, inner, steps=steps, **options)


def regression(tasks: int = 3) -> ms.Task:
    torch.manual_seed(0)
    shapes = ((tasks, 5, 3), (tasks, 5, 2))
    return ms.Task(*(tuple(torch.randn(shape, dtype=torch.float64) for shape in shapes) for _ in range(2)))


def one(tasks: ms.Task) -> ms.Task:
    return ms.Task(*(tuple(x[0] for x in part) for part in tasks))


def squared(w: Tensor, batch: Any) -> Tensor:
    x, y = batch
    return (x @ w - y[:, 0]).square().mean()


def squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    return (prediction - target).square().mean()


def by_autograd(net: nn.Module, task: ms.Task, steps: int) -> dict[str, Tensor]:
    """MAML's meta-gradient, written as everybody does"""
    phi = meta = dict(net.named_parameters())
    for _ in range(steps):
        loss = squared_error(functional_call(net, phi, task.support[0], tie_weights=False), task.support[1])
        grads = torch.autograd.grad(loss, list(phi.values()), create_graph=True)
        phi = {name: p - 0.1 * g for (name, p), g in zip(phi.items(), grads, strict=True)}
    outer = squared_error(functional_call(net, phi, task.query[0], tie_weights=False), task.query[1])
    return dict(zip(meta, torch.autograd.grad(outer, list(meta.values())), strict=True))
