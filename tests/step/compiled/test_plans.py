"""Plans give what the specification gives: graphs that are traced and cut, run operator by operator, in float64."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import metastep as ms
from metastep.core.counting import counting
from metastep.core.trees import map_tree
from metastep.step.compiled.plan import LONG
from tests.core.helpers import DYNAMICS, Swept, by_autograd, case, method, relative_error
from tests.step.compiled.helpers import compiling

pytestmark = pytest.mark.compiled


@pytest.mark.parametrize(
    ("problem", "name", "inner"),
    [
        ("regression", "maml", "adam"),
        ("regression", "multi_step", "momentum"),
        ("regression", "meta_sgd", "nesterov"),
        ("regression", "anil", "rmsprop"),
        ("regression", "maml", "bounding"),
        ("convolution", "multi_step", "adamw"),
        ("convolution", "maml_pp", "sgd"),
        ("meta_network", "maml", "dampened"),
        ("meta_network", "multi_step", "own"),
        ("example_weights", "multi_step", "scheduled"),
        ("example_weights", "maml", "tensor rate"),
        ("two_losses", "maml", "bounded"),
        ("two_losses", "multi_step", "delegating"),
    ],
)
def test_a_plan_gives_the_derivative_of_the_outer_loss(problem: str, name: str, inner: str) -> None:
    given, meta, tasks = case(problem)
    gradient = compiling(given, method(name), DYNAMICS[inner], steps=4)
    meta = gradient.init(meta) if name in ("meta_sgd", "maml_pp") else meta
    found, expected = gradient(meta, tasks), by_autograd(gradient, meta, tasks)
    assert gradient.path.startswith("compiled, 3 tasks at a time"), gradient.path
    assert relative_error(found.grad, expected.grad) < 1e-9
    torch.testing.assert_close(found.metrics, expected.metrics)
    torch.testing.assert_close(found.loss, expected.loss)


SWEEPS = {
    "first order": ms.FOMAML(),
    "truncated": ms.methods.Truncated(depth=2),
    "central differences": ms.methods.HFMAML(delta=0.01),
    "forward over reverse": Swept(curvature=ms.curvature.exact_forward),
    "weights": Swept(weights=(0.5, 0.0, 0.2, 0.3)),
}


@pytest.mark.parametrize("sweep", SWEEPS)
@pytest.mark.parametrize(("problem", "inner"), [("regression", "momentum"), ("example_weights", "adam")])
def test_every_sweep_is_a_plan(problem: str, inner: str, sweep: str) -> None:
    given, meta, tasks = case(problem)
    parts = given, SWEEPS[sweep], DYNAMICS[inner]
    gradient, eager = compiling(*parts, steps=4, chunk_size=1), ms.MetaGradient(*parts, steps=4)
    found, expected = gradient(meta, tasks), eager(meta, tasks)
    assert gradient.path == "compiled, one task after the other"
    assert relative_error(found.grad, expected.grad) < 1e-9
    torch.testing.assert_close(found.metrics, expected.metrics)


def test_windows_that_differ_in_values_alone_are_one_kind() -> None:
    given, meta, tasks = case("regression")
    gradient = compiling(given, ms.MultiStep(window=[2, 1, 2, 1]), ms.SGD(0.1, momentum=0.9), steps=6, batch=3)
    found, expected = gradient(meta, tasks), by_autograd(gradient, meta, tasks)
    assert relative_error(found.grad, expected.grad) < 1e-9
    (plan,) = gradient.compiled._plans.values()
    assert [kind.first for kind in plan._kinds] == [0, 1, 0, 1]


@pytest.mark.parametrize(("problem", "inner"), [("example_weights", "momentum"), ("meta_network", "scheduled")])
def test_what_the_windows_of_a_long_loop_share_is_computed_once(problem: str, inner: str) -> None:
    given, meta, tasks = case(problem)
    nodes = []
    for steps in (LONG - 1, LONG):
        gradient = compiling(given, ms.MAML(), DYNAMICS[inner], steps=steps)
        expected = by_autograd(gradient, meta, tasks)
        assert relative_error(gradient(meta, tasks).grad, expected.grad) < 1e-9
        moved = map_tree(lambda x: 0.9 * x, meta)  # another call reads other values
        assert relative_error(gradient(moved, tasks).grad, by_autograd(gradient, moved, tasks).grad) < 1e-9
        (plan,) = gradient.compiled._plans.values()
        nodes.append(plan.nodes)
    assert nodes[1] < nodes[0]


def test_a_long_loop_shares_one_of_several_results() -> None:
    def loss(w: Tensor, meta: Tensor, batch: Tensor) -> Tensor:
        values, places = (batch * meta.exp()).sort(0)
        return ((values[1:] - w) ** 2).mean() + 0.1 * (w * places[0]).sum()

    problem = ms.Problem(lambda meta, task: meta, ms.every_window(loss), lambda w, meta, task: (w - task.query).norm())
    tasks = ms.Task(torch.randn(2, 6, 4).double(), torch.randn(2, 4).double())
    gradient, meta = compiling(problem, ms.MAML(), ms.SGD(0.1), steps=LONG), torch.ones(4, dtype=torch.float64)
    assert relative_error(gradient(meta, tasks).grad, by_autograd(gradient, meta, tasks).grad) < 1e-12
    assert gradient.path == "compiled, 2 tasks at a time", gradient.path


def test_long_loops_in_batches_share_no_batch() -> None:
    given, meta, tasks = case("regression")
    gradient = compiling(given, ms.MAML(), ms.SGD(0.01, momentum=0.9), steps=LONG, batch=3)
    assert relative_error(gradient(meta, tasks).grad, by_autograd(gradient, meta, tasks).grad) < 1e-9
    assert gradient.path.startswith("compiled"), gradient.path


def test_a_loss_may_know_its_task() -> None:
    def windows(task: Any, lengths: Any) -> list[ms.Window]:
        x, y = task.support
        return [ms.Window(lambda w, meta, batch: ((x @ w - y) ** 2).mean() * meta.exp(), None, n) for n in lengths]

    problem = ms.Problem(lambda meta, task: task.query[0][0], windows, lambda w, meta, task: (w**2).sum())
    tasks = ms.Task((torch.randn(3, 6, 4).double(), torch.randn(3, 6).double()), (torch.randn(3, 2, 4).double(),))
    gradient, meta = compiling(problem, ms.MAML(), ms.SGD(0.1), steps=3), torch.zeros((), dtype=torch.float64)
    for data in (tasks, map_tree(lambda x: 2 * x, tasks)):
        assert relative_error(gradient(meta, data).grad, by_autograd(gradient, meta, data).grad) < 1e-9
    assert gradient.path == "compiled, 3 tasks at a time"


@pytest.mark.parametrize("steps", [3, LONG])
def test_tensors_that_a_loss_holds_are_read_at_every_call(steps: int) -> None:
    held = torch.ones(4, dtype=torch.float64)

    def loss(w: Tensor, meta: Tensor, batch: Any) -> Tensor:
        return (held * (w - batch) ** 2).sum()

    problem = ms.Problem(lambda meta, task: meta, ms.every_window(loss), lambda w, meta, task: (w - task.query).norm())
    tasks = ms.Task(torch.randn(2, 4).double(), torch.randn(2, 4).double())
    gradient, meta = compiling(problem, ms.MAML(), ms.SGD(0.1), steps=3), torch.ones(4, dtype=torch.float64)
    for _ in range(3):
        held += 0.3
        assert relative_error(gradient(meta, tasks).grad, by_autograd(gradient, meta, tasks).grad) < 1e-12
    assert gradient.compiled.reason is None
    assert len(gradient.compiled._plans) == 1


def test_a_schedule_is_asked_at_every_call() -> None:
    rate = [0.1]
    schedule = [lambda meta, step: rate[0] / (1 + int(step)) ** 0.5]  # no tensor can be asked for its int
    given, meta, tasks = case("regression")
    gradient = compiling(given, ms.MultiStep(window=2), ms.SGD(schedule[0], momentum=0.5), steps=4)
    for rate[0] in (0.1, 0.2):
        assert relative_error(gradient(meta, tasks).grad, by_autograd(gradient, meta, tasks).grad) < 1e-9
        assert gradient.compiled.reason is None


@pytest.mark.parametrize("chunk_size", [1, 2, None])
def test_random_numbers_are_drawn_as_eager_execution_draws_them(chunk_size: int | None) -> None:
    net = nn.Sequential(nn.Linear(2, 5), nn.Dropout(0.4), nn.Tanh(), nn.Linear(5, 1)).double()
    parts = ms.few_shot(net, F.mse_loss), ms.MultiStep(window=2), ms.Adam(0.02)
    gradient, eager = (make(*parts, steps=4, chunk_size=chunk_size) for make in (compiling, ms.MetaGradient))
    tasks = case("regression").tasks
    for _ in range(3):
        results = []
        for each in (gradient, eager):
            torch.manual_seed(3)
            results.append((each(net, tasks), torch.rand(())))
        (found, after), (expected, after_eager) = results
        assert relative_error(found.grad, expected.grad) < 1e-9
        assert after == after_eager
    assert gradient.path.startswith("compiled"), gradient.path


def test_corrections_of_adam_are_exact_in_float32() -> None:
    """1 − β₂ᵏ of a step counted in float32 would be 1e-5 to 1e-3 off."""
    given, _, tasks = case("regression")
    net = given.made_of.module.float()
    single = map_tree(torch.Tensor.float, tasks)
    gradient = compiling(given, ms.MAML(), ms.Adam(1e-3), steps=8)
    found = gradient(net, single).grad
    net.double()
    exact = ms.MetaGradient(given, ms.MAML(), ms.Adam(1e-3), steps=8)(net, map_tree(torch.Tensor.double, single)).grad
    assert relative_error(map_tree(torch.Tensor.double, found), exact) < 3e-6


def test_a_plan_counts_its_gradients_and_products() -> None:
    given, meta, tasks = case("regression")
    gradient = compiling(given, ms.MultiStep(window=2), ms.SGD(0.1), steps=8)
    for _ in range(2):
        gradient(meta, tasks)
    with counting() as counts:
        gradient(meta, tasks)
    assert (counts.gradients, counts.products) == (5, 4)
