"""What a loss holds constant, in whichever way, is so to every derivative."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import metastep as ms
from metastep.core.tasks import stack
from tests.core.as_written import by_autograd, gradient_of, one, regression, squared_error
from tests.core.helpers import relative_error


def scaled_by_itself(prediction: Tensor, target: Tensor) -> Tensor:
    with torch.no_grad():
        size = prediction.abs().mean()
    return (prediction / size - target).square().mean()


def own_target(prediction: Tensor, target: Tensor) -> Tensor:
    with torch.no_grad():
        nearer = (prediction + target) / 2
    return (prediction.square() - nearer).square().mean()


def in_and_out(prediction: Tensor, target: Tensor) -> Tensor:
    with torch.no_grad():
        size = prediction.abs().mean()
        with torch.enable_grad():
            error = (prediction * size - target).square().mean()
    return error + prediction.pow(4).mean()


@pytest.mark.parametrize("curvature", [ms.curvature.exact, ms.curvature.exact_forward])
@pytest.mark.parametrize("loss", [scaled_by_itself, own_target, in_and_out])
def test_what_no_grad_holds_is_held_in_second_derivatives(loss: Any, curvature: Any) -> None:
    net, tasks = nn.Linear(3, 2, dtype=torch.float64), regression()
    problem, meta = ms.few_shot(net, loss), ms.parameters(net)
    swept, stored = (gradient_of(problem, 4, method) for method in (ms.MAML(curvature), ms.methods.Reference()))
    assert relative_error(swept.estimator(meta, one(tasks)).grad, stored.estimator(meta, one(tasks)).grad) < 1e-12
    assert relative_error(swept(meta, tasks).grad, stored(meta, tasks).grad) < 1e-12


class Scaled(nn.Module):
    """By a size that is held constant"""

    def __init__(self, held: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.held = nn.Linear(3, 2, dtype=torch.float64), held

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out / self.held(out).norm() + self.held(torch.tanh(out)) * out


METHODS = {
    "exact": ms.MAML(),
    "forward": ms.MAML(curvature=ms.curvature.exact_forward),
    "reference": ms.methods.Reference(),
}


@pytest.mark.parametrize("method", METHODS)
def test_data_is_a_constant_to_second_derivatives_too(method: str) -> None:
    tasks = regression()
    nets = Scaled(lambda x: x.data), Scaled(lambda x: x.detach())
    found = []
    for net in nets:
        gradient, meta = gradient_of(ms.few_shot(net, squared_error), 4, METHODS[method]), ms.parameters(net)
        found.append([gradient.estimator(meta, one(tasks)).grad, gradient(meta, tasks).grad])
    assert relative_error(*found) < 1e-12
    plain = list(by_autograd(nets[0], one(tasks), 4).values())
    assert relative_error(list(found[0][0].values()), plain) < 1e-12


def balanced(create_graph: bool, params: Any, meta: Any, batch: Any) -> Tensor:
    """A loss over the size of its own gradient, which is a constant unless a graph is asked for"""
    x, y = batch
    error = squared_error(x @ params["w"], y)
    unused = torch.zeros((), dtype=torch.float64, requires_grad=True)
    slope, nothing = torch.autograd.grad(
        error, (params["w"], unused), retain_graph=True, create_graph=create_graph, allow_unused=True
    )
    assert nothing is None
    return error / (slope.norm() + 1)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_gradient_in_a_loss_is_what_it_is_to_autograd(method: str, create_graph: bool) -> None:
    inner = partial(balanced, create_graph)
    problem = ms.Problem(lambda meta, task: meta, ms.every_window(inner), lambda p, m, task: inner(p, m, task.query))
    meta, tasks = {"w": torch.randn(3, 2, dtype=torch.float64)}, regression()
    phi = theta = meta["w"].clone().requires_grad_()
    for _ in range(4):
        (slope,) = torch.autograd.grad(inner({"w": phi}, (), one(tasks).support), phi, create_graph=True)
        phi = phi - 0.1 * slope
    (expected,) = torch.autograd.grad(inner({"w": phi}, (), one(tasks).query), theta)
    gradient = gradient_of(problem, 4, METHODS[method])
    assert relative_error(gradient.estimator(meta, one(tasks)).grad["w"], expected) < 1e-12
    each = [ms.Task(*[(x[i], y[i]) for x, y in tasks]) for i in range(3)]
    alone = stack([gradient.estimator(meta, task).grad["w"] for task in each])
    assert relative_error(gradient(meta, tasks).grad["w"], alone.mean(0)) < 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_what_detaches_in_place_is_refused_where_it_is_not_seen(method: str) -> None:
    net = Scaled(lambda x: x.clone().detach_())
    gradient, meta = gradient_of(ms.few_shot(net, squared_error), 4, METHODS[method]), ms.parameters(net)
    with pytest.raises(ms.MetastepError, match=r"detach_\(\).* Write x = x\.detach\(\)"):
        replace(gradient, chunk_size=len(regression().support[0]))(meta, regression())
    if method != "forward":
        expected = list(by_autograd(net, one(regression()), 4).values())
        found = gradient.estimator(meta, one(regression())).grad
        assert relative_error(list(found.values()), expected) < 1e-12
