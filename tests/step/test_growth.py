"""Growth, ‖Λ₀‖ / ‖Λ_T‖, is that of autograd in every engine, and is absent where nothing is swept.

The windows are of different lengths, so that this holds explicit shapes of windows in every engine too.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import metastep as ms
from metastep.nets.conv4 import Conv4
from metastep.step.compiled.engine import Compiled
from metastep.step.compiled.inductor import interpreted
from tests.step.helpers import each, some_tasks, tanh_net

WINDOWS = [1, 2, 2, 3]
INNER = {"momentum": ms.SGD(0.1, momentum=0.9, weight_decay=0.01), "adam": ms.Adam(0.05)}


def by_autograd(net: nn.Module, loss: Any, inner: Any, task: Any, depth: int | None = None) -> Tensor:
    """Both ends of Λ, from the graph of the whole loop"""
    cut = 0 if depth is None else len(WINDOWS) - depth
    state = inner.init({name: p.detach().requires_grad_() for name, p in net.named_parameters()})
    for k, steps in enumerate(WINDOWS):
        if k == cut:
            first = state.params
        (x, y), names = task[0], list(state.params)
        value = loss(functional_call(net, state.params, x), y)
        grads = torch.autograd.grad(value, list(state.params.values()), create_graph=True)
        state = inner.advance(state, dict(zip(names, grads, strict=True)), (), steps)
    x, y = task[1]
    value = loss(functional_call(net, state.params, x), y)
    ends = [torch.autograd.grad(value, list(p.values()), retain_graph=True) for p in (first, state.params)]
    before, after = (torch.cat([g.reshape(-1) for g in end]).norm() for end in ends)
    return before / after


def require_grad(gradient: ms.MetaGradient, net: nn.Module, tasks: ms.Task, found: ms.Estimate) -> None:
    """The meta-gradient of these windows is that of plain autograd"""
    stored = ms.MetaGradient(
        gradient.problem, ms.methods.Reference(window=WINDOWS), gradient.inner, steps=gradient.steps, chunk_size=1
    )
    torch.testing.assert_close(found.grad, stored(net, tasks).grad, rtol=1e-8, atol=1e-12)


def described(method: Any, inner: str, **options: Any) -> tuple[ms.MetaGradient, nn.Module, ms.Task, Tensor]:
    net, tasks = tanh_net(), some_tasks()
    expected = [
        by_autograd(net, F.mse_loss, INNER[inner], task, getattr(method, "depth", None)) for task in each(tasks)
    ]
    gradient = ms.MetaGradient(ms.few_shot(net, F.mse_loss), method, INNER[inner], steps=sum(WINDOWS), **options)
    return gradient, net, tasks, torch.stack(expected)


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("method", [ms.MultiStep(window=WINDOWS), ms.methods.Truncated(depth=2, window=WINDOWS)])
def test_the_specification_and_the_eager_engine_give_autograds(method: Any, inner: str) -> None:
    gradient, net, tasks, expected = described(method, inner)
    one = gradient.estimator(ms.parameters(net), each(tasks)[0])
    torch.testing.assert_close(one.growth, expected[0], rtol=1e-12, atol=0)
    for options in ({}, {"chunk_size": 1}, {"chunk_size": 2}, {"memory": 2000}):
        found = ms.MetaGradient(gradient.problem, method, gradient.inner, steps=gradient.steps, **options)
        torch.testing.assert_close(found(net, tasks).growth, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(net, each(tasks)).growth, expected, rtol=1e-12, atol=0)
    if isinstance(method, ms.MultiStep):
        require_grad(gradient, net, tasks, gradient(net, tasks))
    of_different_shapes = [each(tasks)[0], ms.Task(*(tuple(x[:3] for x in part) for part in each(tasks)[1]))]
    assert gradient(net, of_different_shapes).growth.shape == (2,)  # type: ignore[union-attr]


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("chunk", [None, 1])
def test_plans_give_autograds(inner: str, chunk: int | None) -> None:
    gradient, net, tasks, expected = described(ms.MultiStep(window=WINDOWS), inner)
    plans = Compiled(gradient.estimator, chunk, lambda meta, tasks: 4, build=interpreted)
    found = plans(ms.parameters(net), tasks, lambda meta: gradient(meta, tasks))
    assert plans.reason is None
    torch.testing.assert_close(found.growth, expected, rtol=1e-9, atol=0)
    require_grad(gradient, net, tasks, found)


@pytest.mark.parametrize("chunk", [None, 1])
def test_the_chain_gives_autograds(chunk: int | None) -> None:
    torch.manual_seed(0)
    net = Conv4(ways=3, filters=4, size=8).double()
    x, y = torch.rand(3, 6, 1, 8, 8, dtype=torch.float64), torch.arange(6).remainder(3).expand(3, 6)
    tasks, inner = ms.Task((x, y), (x.flip(1), y.flip(1))), INNER["momentum"]
    problem = ms.few_shot(net, F.cross_entropy)
    gradient = ms.MetaGradient(problem, ms.MultiStep(window=WINDOWS), inner, steps=sum(WINDOWS), chunk_size=chunk)
    found = gradient(net, tasks)
    assert "by hand" in gradient.path
    expected = torch.stack([by_autograd(net, F.cross_entropy, inner, task) for task in each(tasks)])
    torch.testing.assert_close(found.growth, expected, rtol=1e-9, atol=0)
    require_grad(gradient, net, tasks, found)


@pytest.mark.parametrize("method", [ms.FOMAML(), ms.Reptile(), ms.IMAML(), ms.methods.Reference()])
def test_there_is_none_where_nothing_is_swept(method: Any) -> None:
    gradient, net, tasks, _ = described(method, "adam")
    assert gradient.estimator(ms.parameters(net), each(tasks)[0]).growth is None
    assert gradient(net, tasks).growth is None


def test_a_step_gives_it() -> None:
    gradient, net, tasks, expected = described(ms.MultiStep(window=WINDOWS), "momentum")
    step = ms.MetaStep(gradient, net, torch.optim.SGD(net.parameters(), lr=0.1))
    torch.testing.assert_close(step(tasks).growth, expected, rtol=1e-12, atol=0)


def test_it_is_zero_where_the_outer_loss_is_constant() -> None:
    """Not 0 / 0"""
    problem = ms.Problem(lambda meta, task: meta, ms.every_window(lambda p, m, b: (p - b).square().sum()),
                         lambda p, m, task: 0 * p.sum())  # fmt: skip
    estimator = ms.MetaGradient(problem, ms.MAML(), ms.SGD(0.1), steps=2).estimator
    found = estimator.unchecked(torch.ones(2), ms.Task(torch.zeros(2), torch.zeros(2)))
    assert found.growth == 0
