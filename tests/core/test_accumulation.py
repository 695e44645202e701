"""By parts of the examples everything is as by all of them at once, but for the memory."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import metastep as ms
from metastep.core import registry
from metastep.core.accumulation import accumulated
from metastep.core.counting import counting, peak_bytes
from tests.core.helpers import DYNAMICS, RANDOM, STEPS, Case, case, first, method, relative_error

FORWARD = ms.MultiStep(window=3, curvature=ms.curvature.exact_forward)
DRAWN = [name for name in registry.names("method") if name not in RANDOM]  # the others would draw for each part
CASES = [
    *(("regression", method(name)) for name in DRAWN),
    ("regression", FORWARD),
    *(("meta_network", method(name)) for name in ("maml", "multi_step", "hf_maml", "reference")),
    ("meta_network", FORWARD),
]


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
@pytest.mark.parametrize(("name", "method"), CASES, ids=str)
def test_parts_make_the_whole(name: str, method: ms.methods.Method, dynamics: str, size: int) -> None:
    problem, params, tasks = with_means(name)
    inner = DYNAMICS[dynamics]
    if isinstance(method, ms.IMAML):
        inner = replace(inner, weight_decay=0.0)  # type: ignore[type-var]
    gradient = ms.MetaGradient(problem, method, inner, steps=STEPS)
    meta = gradient.init(params)
    whole, parts = (each(meta, tasks) for each in (gradient, replace(gradient, example_chunk_size=size)))
    assert relative_error(parts.grad, whole.grad) < 1e-9
    torch.testing.assert_close((parts.loss, parts.metrics), (whole.loss, whole.metrics))
    judged = replace(gradient, example_chunk_size=size).judge(meta, tasks)
    torch.testing.assert_close(judged.metrics, whole.metrics)


def test_learned_rates_and_heads() -> None:
    problem, params, tasks = with_means("regression")
    head = "2.weight".__eq__
    problem, meta = ms.problems.adapt_only(problem, head), ms.problems.with_rates(params, 0.05, head=head)
    gradient = ms.MetaGradient(problem, ms.MetaSGD(window=2), ms.SGD(0.05), steps=STEPS)
    whole, parts = (each(meta, tasks) for each in (gradient, replace(gradient, example_chunk_size=4)))
    assert relative_error(parts.grad, whole.grad) < 1e-9


def test_parts_of_mini_batches() -> None:
    """Whichever is around the other"""
    problem, meta, tasks = with_means("regression")
    gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(0.1), steps=4)
    whole = replace(gradient, batch=3)(meta, tasks)
    inside = ms.problems.in_batches(accumulated(problem, 2), 3)
    for each in (replace(gradient, problem=inside), replace(gradient, batch=3, example_chunk_size=2)):
        assert relative_error(each(meta, tasks).grad, whole.grad) < 1e-9


def test_one_product_for_each_window() -> None:
    problem, meta, tasks = with_means("regression")
    gradient = ms.MetaGradient(problem, ms.MultiStep(4), ms.SGD(0.1), steps=8, example_chunk_size=2)
    with counting() as counts:
        gradient.estimator(meta, first(tasks))
    assert (counts.gradients, counts.products) == (3, 2)


def net(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), *layers, nn.Linear(64, 1)).double()


def examples(number: int) -> ms.Task:
    torch.manual_seed(1)
    shapes = ((number, 8), (number, 1))
    return ms.Task(*(tuple(torch.randn(shape, dtype=torch.float64) for shape in shapes) for _ in range(2)))


@pytest.mark.parametrize("method", [ms.MAML(), ms.FOMAML()], ids=str)
def test_memory_is_that_of_a_part(method: ms.methods.Method) -> None:
    module, task = net(), examples(4000)
    gradient = ms.MetaGradient(ms.few_shot(module, F.mse_loss), method, ms.SGD(0.1), steps=STEPS)
    meta = ms.parameters(module)

    def peak(gradient: ms.MetaGradient) -> int:
        return peak_bytes(lambda: gradient.estimator(meta, task), torch.device("cpu"))[1]

    assert peak(replace(gradient, example_chunk_size=100)) < peak(gradient) / 8


def test_noise_is_drawn_once_for_each_part() -> None:
    module, task = net(nn.Dropout(0.5)), examples(6)
    problem, found = ms.few_shot(module, F.mse_loss), []
    for each in (ms.MAML(), ms.methods.Reference()):
        gradient = ms.MetaGradient(problem, each, ms.SGD(0.1), steps=STEPS, example_chunk_size=4)
        torch.manual_seed(2)
        found.append(gradient.estimator(ms.parameters(module), task).grad)
    assert relative_error(*found) < 1e-9


def test_refusals() -> None:
    problem = ms.few_shot(net(), F.mse_loss)
    with pytest.raises(ms.MetastepError, match="parts of 0 examples"):
        accumulated(problem, 0)
    with pytest.raises(ms.MetastepError, match="example_chunk_size = 0 must be a whole number that is at least 1"):
        ms.MetaGradient(problem, ms.MAML(), ms.SGD(0.1), steps=1, example_chunk_size=0)
    gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(0.1), steps=1, example_chunk_size=2)
    (x, y), query = examples(4)
    for support in ((x, y[:2]), (x, y[0, 0])):
        with pytest.raises(ms.MetastepError, match=r"lengths .* Give all tensors .* one number of examples"):
            gradient.estimator(ms.parameters(net()), ms.Task(support, query))
