"""Random numbers are drawn once for each window, and refused where they would be drawn again."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import metastep as ms
from metastep.step.compiler.compiling import Compiled, as_traced
from tests.core.as_written import gradient_of, one, regression, squared
from tests.core.helpers import relative_error


def test_noise_of_a_problem_written_by_hand_is_drawn_once() -> None:
    def noisy(w: Tensor, meta: Tensor, batch: Any) -> Tensor:
        x, y = batch
        return squared(w, (F.dropout(x, 0.5), y))

    problem = ms.Problem(lambda meta, task: meta, ms.every_window(noisy), lambda w, meta, task: squared(w, task.query))
    found = []
    for method in (ms.MAML(), ms.methods.Reference()):
        torch.manual_seed(1)
        estimator = gradient_of(problem, 4, method).estimator
        found.append(estimator(torch.ones(3, dtype=torch.float64), one(regression())))
    assert found[0].loss == found[1].loss
    assert relative_error(found[0].grad, found[1].grad) < 1e-12


def test_a_start_that_draws_is_refused() -> None:
    problem = ms.Problem(
        lambda meta, task: meta * torch.randn_like(meta),
        ms.every_window(lambda w, meta, batch: squared(w, batch)),
        lambda w, meta, task: squared(w, task.query),
    )
    with pytest.raises(ms.MetastepError, match="start of a problem draws random numbers"):
        gradient_of(problem).estimator(torch.ones(3, dtype=torch.float64), one(regression()))


class Noisy(nn.Module):
    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(3, 2, dtype=torch.float64), draw

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(self.layer(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("draw", "refused"),
    [
        (lambda x: x + torch.randn_like(x) * x, True),
        (lambda x: F.dropout(x, 0.5), True),
        (lambda x: x * torch.empty_like(x).uniform_(), True),
        (lambda x: x * x.sigmoid().detach().bernoulli(), True),
        (lambda x: x[..., torch.randperm(2)], True),
        (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), True),
        (lambda x: F.scaled_dot_product_attention(x, x, x), False),
        (lambda x: F.dropout(x, 0.5, training=False), False),
        (lambda x: F.dropout(x, 0.0), False),
    ],
)
def test_a_step_that_draws_is_not_recorded(draw: Any, refused: bool) -> None:
    net, tasks = Noisy(draw), regression()
    step = gradient_of(ms.few_shot(net, F.mse_loss), 3).unchecked
    unit = Compiled(lambda meta, tasks: (meta, step(meta, tasks)), as_traced)
    meta = {name: p.detach() for name, p in ms.parameters(net).items()}
    found = []
    for call in (lambda: unit(meta, tasks)[1], lambda: step(meta, tasks)):
        torch.manual_seed(2)
        found.append(call().grad)
    assert ("not traced: NoiseError" in unit.path) is refused, unit.path
    assert relative_error(found[0], found[1]) < 1e-12


def drawn_rule(params: Any, memory: Any, grad: Any, meta: Any, t: int) -> Any:
    return params - 0.1 * torch.bernoulli(torch.full_like(grad, 0.5)) * grad, memory


@pytest.mark.parametrize(
    "dynamics", [ms.StepFunction(drawn_rule), ms.SGD(lambda meta, step: 0.1 * torch.rand((), dtype=torch.float64))]
)
def test_an_optimizer_that_draws_is_refused(dynamics: Any) -> None:
    problem = ms.Problem(
        lambda meta, task: meta,
        ms.every_window(lambda w, meta, batch: squared(w, batch)),
        lambda w, meta, task: squared(w, task.query),
    )
    gradient = ms.MetaGradient(problem, ms.MAML(), dynamics, steps=2)
    with pytest.raises(ms.MetastepError, match="an inner optimizer, or a rate of it, draws random numbers"):
        gradient.estimator(torch.ones(3, dtype=torch.float64), one(regression()))


def test_a_start_that_draws_pulls_nowhere() -> None:
    problem = ms.Problem(
        lambda meta, task: torch.randn(3, dtype=torch.float64),
        ms.every_window(lambda w, meta, batch: 0 * w.sum()),
        lambda w, meta, task: squared(w, task.query),
    )
    with pytest.raises(ms.MetastepError, match="the start of a problem draws"):
        gradient_of(problem, 2, ms.IMAML()).adapt(torch.ones(3, dtype=torch.float64), one(regression()))


def test_methods_are_compared_under_the_same_noise() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 2)).double()
    gradient = gradient_of(ms.few_shot(net, F.mse_loss), 3)
    rows = ms.compare({"one": gradient, "the same": gradient}, ms.parameters(net), regression(), repeats=2)
    assert [row.cosine for row in rows] == pytest.approx([1, 1])
    assert [row.relative_error for row in rows] == pytest.approx([0, 0], abs=1e-12)
