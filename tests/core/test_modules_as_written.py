"""Modules as people write them: what used to end in other numbers, without a word."""

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import metastep as ms
from tests.core.as_written import by_autograd, gradient_of, one, regression, squared_error
from tests.core.helpers import relative_error


class Counting(nn.Module):
    """Writes a buffer on the way"""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, dtype=torch.float64)
        self.register_buffer("seen", torch.zeros(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        self.seen = 0.9 * self.seen + 0.1 * y.mean(0).detach()
        return y - self.seen


class Cell(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cell = kind(3, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.cell(x)
        return y[0] if isinstance(y, tuple) else y  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:a module writes into its buffers")
@pytest.mark.parametrize("net", [Counting(), Cell(nn.GRUCell), Cell(nn.LSTMCell), Cell(nn.RNNCell)])
def test_modules(net: nn.Module) -> None:
    tasks = regression()
    problem, meta = ms.few_shot(net, lambda p, y: (p - y).square().mean()), ms.parameters(net)
    buffers = {name: b.clone() for name, b in net.named_buffers()}
    swept, stored = (gradient_of(problem, 3, method) for method in (ms.MAML(), ms.methods.Reference()))
    assert relative_error(swept.estimator(meta, one(tasks)).grad, stored.estimator(meta, one(tasks)).grad) < 1e-12
    assert relative_error(swept(meta, tasks).grad, stored(meta, tasks).grad) < 1e-12
    torch.testing.assert_close(dict(net.named_buffers()), buffers)
    assert all(type(p) is nn.Parameter for p in net.parameters())


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"answer": self.layer(x)}


def test_metrics_of_what_is_no_tensor() -> None:
    def error(prediction: Any, target: Tensor) -> Tensor:
        return F.mse_loss(prediction["answer"], target)

    net, task = Named(), one(regression())
    estimate = gradient_of(ms.few_shot(net, error, {"error": error})).estimator(ms.parameters(net), task)
    torch.testing.assert_close(estimate.metrics["error"], estimate.loss)


def twice(between: nn.Module) -> nn.Module:
    """A part that occurs twice, under two names"""
    torch.manual_seed(0)
    part = nn.Sequential(nn.Linear(3, 3, dtype=torch.float64), between)
    return nn.Sequential(part, part, nn.Linear(3, 2, dtype=torch.float64))


@pytest.mark.parametrize("between", [nn.Tanh(), nn.BatchNorm1d(3, dtype=torch.float64).eval()])
def test_a_part_that_occurs_twice_is_left_in_its_place(between: nn.Module) -> None:
    net, tasks = twice(between), regression()
    problem, meta = ms.few_shot(net, squared_error), ms.parameters(net)
    before = {name: (tensor, tensor.clone()) for name, tensor in net.state_dict(keep_vars=True).items()}
    gradient = gradient_of(problem, 4)
    expected = by_autograd(twice(deepcopy(between)), one(tasks), 4)
    assert relative_error(gradient.estimator(meta, one(tasks)).grad, expected) < 1e-12
    gradient(meta, tasks)
    ms.apply(net, gradient.adapt(meta, one(tasks)), tasks.query[0][0])
    after = net.state_dict(keep_vars=True)
    assert all(after[name] is tensor and torch.equal(tensor, kept) for name, (tensor, kept) in before.items())
    assert list(ms.parameters(net)) == list(meta)


class Writing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        x.sub_(0.5)
        out: Tensor = self.layer(x)
        return out


@pytest.mark.parametrize("mapped", [False, True])
def test_a_module_that_writes_into_its_data_is_refused(mapped: bool) -> None:
    net, tasks = Writing(), regression()
    gradient = gradient_of(ms.few_shot(net, squared_error))
    with pytest.raises(ms.MetastepError, match=r"writes into its data.* Write x = x \+ 1"):
        (gradient if mapped else gradient.estimator)(ms.parameters(net), tasks if mapped else one(tasks))


def test_apply_takes_any_name_of_a_tensor_and_no_others() -> None:
    net = twice(nn.Tanh())
    x = torch.ones(1, 3, dtype=torch.float64)
    changed = {name: tensor + 1 for name, tensor in net.state_dict().items()}
    expected = ms.apply(net, {name: p + 1 for name, p in ms.parameters(net).items()}, x)
    assert torch.equal(ms.apply(net, changed, x), expected)
    assert torch.equal(ms.apply(net, {n: t for n, t in changed.items() if not n.startswith("0.")}, x), expected)
    with pytest.raises(ms.MetastepError, match="Sequential has no parameter or buffer 'wrong'"):
        ms.apply(net, {"wrong": x}, x)
