"""Small problems for the tests of `MetaGradient` and `MetaStep`, and the loops that a user would write by hand."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import metastep as ms
from metastep.core.trees import Tree, map_tree

STEPS, WINDOW, RATE = 4, 2, 0.1


def tanh_net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()


def gradient_of(net: nn.Module, method: ms.methods.Method | None = None, **options: Any) -> ms.MetaGradient:
    method = method or ms.MultiStep(window=WINDOW)
    return ms.MetaGradient(ms.few_shot(net, F.mse_loss), method, ms.SGD(lr=RATE), steps=STEPS, **options)


def some_tasks(seed: int = 1, number: int = 5) -> ms.Task:
    drawn = torch.Generator().manual_seed(seed)

    def pairs() -> tuple[Tensor, Tensor]:
        return tuple(torch.randn(number, 6, n, dtype=torch.float64, generator=drawn) for n in (2, 1))  # type: ignore[return-value]

    return ms.Task(pairs(), pairs())


def each(tasks: Any) -> list[Any]:
    """Stacked tasks as a list"""
    return [map_tree(lambda x, i=i: x[i], tasks) for i in range(len(tasks.support[0]))]


def loss_by_hand(net: nn.Module, meta: dict[str, Tensor], tasks: Sequence[Any]) -> Tensor:
    """The loop that everybody writes: windows of steps that share a gradient, through autograd's graph"""
    losses = []
    for task in tasks:
        params = dict(meta)
        for _ in range(STEPS // WINDOW):
            (x, y), names = task.support, list(params)
            inner = F.mse_loss(functional_call(net, params, x), y)
            grads = torch.autograd.grad(inner, [params[name] for name in names], create_graph=True)
            for _ in range(WINDOW):
                params = {name: params[name] - RATE * grad for name, grad in zip(names, grads, strict=True)}
        x, y = task.query
        losses.append(F.mse_loss(functional_call(net, params, x), y))
    return torch.stack(losses).mean()


def gradient_by_hand(net: nn.Module, tasks: Sequence[Any]) -> Tree:
    meta = dict(net.named_parameters())
    loss = loss_by_hand(net, meta, tasks)
    return dict(zip(meta, torch.autograd.grad(loss, list(meta.values())), strict=True))


def grads_of(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def values_of(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in net.named_parameters()}
