"""By parts of the examples everything is as by all of them at once, but for the memory."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import metastep as ms
from metastep.core.memory import peak_bytes
from tests.core.helpers import DYNAMICS, STEPS, Case, case, first, relative_error

METHODS: dict[str, Any] = {
    "maml": lambda problem, dynamics: ms.maml(problem, dynamics, STEPS),
    "multi_step": lambda problem, dynamics: ms.multi_step(problem, dynamics, STEPS, 3),
    "forward": lambda problem, dynamics: ms.multi_step(problem, dynamics, STEPS, 3, ms.exact_forward),
    "hf_maml": lambda problem, dynamics: ms.hf_maml(problem, dynamics, STEPS, 3),
    "reference": lambda problem, dynamics: ms.reference(problem, dynamics, STEPS),
    "imaml": lambda problem, dynamics: ms.imaml(problem, replace(dynamics, weight_decay=0.0), STEPS),
    "fo_maml": lambda problem, dynamics: ms.fo_maml(problem, dynamics, STEPS),
}
CASES = [("regression", method) for method in METHODS] + [("meta_network", method) for method in list(METHODS)[:5]]


def with_means(name: str) -> Case:
    """Of 6 examples of each task, with a metric that is a mean too"""
    problem, meta, tasks = case(name)

    def outer(params: Any, meta: Any, task: Any) -> Any:
        found = problem.outer_loss(params, meta, task)
        loss = found[0] if isinstance(found, tuple) else found
        return loss, {"twice": 2 * loss.detach()}

    return Case(problem._replace(outer_loss=outer), meta, tasks)


@pytest.mark.parametrize("size", [1, 4, 100])  # equal parts, a smaller last one, all at once
@pytest.mark.parametrize("dynamics", ["momentum", "adam"])
@pytest.mark.parametrize(("name", "method"), CASES)
def test_parts_make_the_whole(name: str, method: str, dynamics: str, size: int) -> None:
    problem, meta, tasks = with_means(name)
    inner, make = DYNAMICS[dynamics], METHODS[method]
    whole, parts = (ms.over_tasks(make(each, inner))(meta, tasks) for each in (problem, ms.accumulated(problem, size)))
    assert relative_error(parts.grad, whole.grad) < 1e-9
    torch.testing.assert_close((parts.loss, parts.metrics), (whole.loss, whole.metrics))


def test_learned_rates_and_heads() -> None:
    problem, params, tasks = with_means("regression")
    head = "2.weight".__eq__
    problem, meta = ms.adapt_only(problem, head), ms.with_rates(params, 0.05, head=head)
    whole, parts = (
        ms.over_tasks(ms.meta_sgd(each, ms.SGD(0.05), STEPS, window=2))(meta, tasks)
        for each in (problem, ms.accumulated(problem, 4))
    )
    assert relative_error(parts.grad, whole.grad) < 1e-9


def test_parts_of_mini_batches() -> None:
    """Whichever is around the other"""
    problem, meta, tasks = with_means("regression")
    whole = ms.over_tasks(ms.maml(ms.in_batches(problem, 3), ms.SGD(0.1), 4))(meta, tasks)
    for each in (ms.in_batches(ms.accumulated(problem, 2), 3), ms.accumulated(ms.in_batches(problem, 3), 2)):
        assert relative_error(ms.over_tasks(ms.maml(each, ms.SGD(0.1), 4))(meta, tasks).grad, whole.grad) < 1e-9


def test_one_product_for_each_window() -> None:
    problem, meta, tasks = with_means("regression")
    with ms.counting() as counts:
        ms.multi_step(ms.accumulated(problem, 2), ms.SGD(0.1), 8, 4)(meta, first(tasks))
    assert (counts.gradients, counts.products) == (3, 2)


def net(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), *layers, nn.Linear(64, 1)).double()


def examples(number: int) -> ms.Task:
    torch.manual_seed(1)
    shapes = ((number, 8), (number, 1))
    return ms.Task(*(tuple(torch.randn(shape, dtype=torch.float64) for shape in shapes) for _ in range(2)))


@pytest.mark.parametrize("method", ["maml", "fo_maml"])
def test_memory_is_that_of_a_part(method: str) -> None:
    module, task = net(), examples(4000)
    problem, meta = ms.few_shot(module, F.mse_loss), ms.parameters_of(module)

    def peak(problem: ms.Problem) -> int:
        estimator = METHODS[method](problem, ms.SGD(0.1))
        return peak_bytes(lambda: estimator(meta, task), torch.device("cpu"))[1]

    assert peak(ms.accumulated(problem, 100)) < peak(problem) / 8


def test_noise_is_drawn_once_for_each_part() -> None:
    module, task = net(nn.Dropout(0.5)), examples(6)
    problem, meta = ms.accumulated(ms.few_shot(module, F.mse_loss), 4), ms.parameters_of(module)
    found = []
    for method in ("maml", "reference"):
        torch.manual_seed(2)
        found.append(METHODS[method](problem, ms.SGD(0.1))(meta, task).grad)
    assert relative_error(*found) < 1e-9


def test_refusals() -> None:
    problem = ms.few_shot(net(), F.mse_loss)
    with pytest.raises(ms.MetastepError, match="parts of 0 examples"):
        ms.accumulated(problem, 0)
    (x, y), query = examples(4)
    for support in ((x, y[:2]), (x, y[0, 0])):
        with pytest.raises(ms.MetastepError, match=r"lengths .* Give all tensors .* one number of examples"):
            ms.maml(ms.accumulated(problem, 2), ms.SGD(0.1), 1)(ms.parameters_of(net()), ms.Task(support, query))
