"""The reverse sweep is exact: it equals autograd through the stored unroll, and finite differences, for everything."""

from typing import Any

import pytest
import torch

import metastep as ms
from metastep.core.trees import Tree, dot, map_tree, normal_like
from metastep.core.windows import outer_value, window_lengths
from tests.core.helpers import DYNAMICS, PROBLEMS, STEPS, Swept, case, first, relative_error

Reference = ms.methods.Reference


def both(problem: ms.Problem, dynamics: Any, steps: Any, window: int = 1) -> tuple[ms.MetaGradient, ms.MetaGradient]:
    """By the sweep, and by autograd through the stored unroll"""
    swept, stored = (
        ms.MetaGradient(problem, method, dynamics, steps=steps) for method in (ms.MultiStep(window), Reference(window))
    )
    return swept, stored


@pytest.mark.parametrize("window", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("dynamics", DYNAMICS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_equals_autograd_through_the_unroll(problem: str, dynamics: str, window: int) -> None:
    p, meta, tasks = case(problem)
    swept, stored = (gradient(meta, tasks) for gradient in both(p, DYNAMICS[dynamics], STEPS, window))
    assert relative_error(swept.grad, stored.grad) < 1e-9
    torch.testing.assert_close(swept.metrics, stored.metrics, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("dynamics", ["momentum", "adam", "own"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_options_do_not_change_the_result(problem: str, dynamics: str, window: int) -> None:
    p, meta, tasks = case(problem)
    plain = ms.MetaGradient(p, ms.MultiStep(window), DYNAMICS[dynamics], steps=STEPS)(meta, tasks)
    for method, chunk in (
        (Swept(window, ms.curvature.exact_forward), None),
        (Swept(window), 2),
        (Swept(window), 1),
        (Swept(window, depth=100), 3),
    ):
        other = ms.MetaGradient(p, method, DYNAMICS[dynamics], steps=STEPS, chunk_size=chunk)(meta, tasks)
        assert relative_error(other.grad, plain.grad) < 1e-9
        torch.testing.assert_close(other.metrics, plain.metrics)


@pytest.mark.parametrize("window", [1, 3, 8])
@pytest.mark.parametrize("dynamics", DYNAMICS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_finite_differences_agree(problem: str, dynamics: str, window: int) -> None:
    p, meta, tasks = case(problem)
    task, estimator = first(tasks), both(p, DYNAMICS[dynamics], STEPS, window)[0].estimator
    direction, h = normal_like(meta), 1e-6

    def adapted_loss(meta: Tree) -> torch.Tensor:
        loop = estimator.loop
        final = loop.adapt(meta, task)
        return outer_value(p, final.params, meta, task)[0]

    with torch.no_grad():
        ahead, behind = (adapted_loss(map_tree(lambda m, d, s=s: m + s * d, meta, direction)) for s in (h, -h))
    along = dot(estimator(meta, task).grad, direction)
    torch.testing.assert_close(along, (ahead - behind) / (2 * h), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("lengths", [[4, 2, 1, 1], [1, 1, 2, 4], [8]])
def test_explicit_windows(lengths: list[int]) -> None:
    p, meta, tasks = case("regression")
    swept, stored = (gradient(meta, tasks) for gradient in both(p, DYNAMICS["momentum"], lengths))
    assert relative_error(swept.grad, stored.grad) < 1e-9
    listed = ms.MetaGradient(p, ms.MultiStep(lengths), DYNAMICS["momentum"], steps=8)(meta, tasks)
    assert relative_error(listed.grad, swept.grad) == 0


def test_lengths_of_windows() -> None:
    assert window_lengths(8, 3) == (3, 3, 2)
    assert window_lengths(8, 8) == (8,)
    assert window_lengths(3, 8) == (3,)
    assert window_lengths(3) == (1, 1, 1)
    assert window_lengths([4, 2, 1, 1]) == window_lengths(8, (4, 2, 1, 1)) == (4, 2, 1, 1)


def test_each_window_may_have_its_own_batch() -> None:
    net = torch.nn.Linear(2, 1).double()
    loss = lambda params, meta, batch: torch.nn.functional.mse_loss(  # noqa: E731
        batch[0] @ params["weight"].T + params["bias"], batch[1]
    )
    torch.manual_seed(0)
    batches = [(torch.randn(4, 2).double(), torch.randn(4, 1).double()) for _ in range(3)]
    task = ms.Task(batches, batches[0])
    problem = ms.Problem(
        lambda meta, task: meta,
        ms.problems.batch_by_batch(loss),
        lambda params, meta, task: loss(params, meta, task.query),
    )
    meta = ms.parameters(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    estimate = ms.MetaGradient(problem, ms.MAML(), ms.SGD(0.1), steps=3).estimator(meta, task)
    for x, y in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(estimate.loss, torch.nn.functional.mse_loss(net(batches[0][0]), batches[0][1]).detach())
    stored = ms.MetaGradient(problem, Reference(), ms.SGD(0.1), steps=3).estimator(meta, task)
    assert relative_error(estimate.grad, stored.grad) < 1  # θ has moved
    with pytest.raises(ms.MetastepError, match="3 support batches for 2 windows"):
        ms.MetaGradient(problem, ms.MAML(), ms.SGD(0.1), steps=2).estimator(meta, task)


def test_an_optimizer_state_carries_over_and_is_left_alone() -> None:
    """As in L2T-ww: the inner loop starts from a real optimizer's velocity, and leaves no trace."""
    p, meta, tasks = case("two_losses")
    for dynamics in (DYNAMICS["momentum"], DYNAMICS["adam"]):
        task = first(tasks)
        warm = dynamics.advance(dynamics.init(task.start), map_tree(torch.sin, task.start), meta, 5)
        carried = p._replace(start=lambda meta, task, warm=warm: warm)
        kept = map_tree(torch.clone, tuple(warm[:2]))
        swept, stored = (gradient.estimator(meta, task) for gradient in both(carried, dynamics, 4, 2))
        assert relative_error(swept.grad, stored.grad) < 1e-9
        assert relative_error(swept.grad, both(p, dynamics, 4, 2)[0].estimator(meta, task).grad) > 1e-3
        assert relative_error(tuple(warm[:2]), kept) == 0


class Unused(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:unused.weight, unused.bias of φ")
@pytest.mark.parametrize("dynamics", ["adam", "adamw", "rmsprop"])
def test_a_parameter_without_gradient_keeps_everything_finite(dynamics: str) -> None:
    """√v has an infinite slope at v = 0, which made whole meta-gradients NaN in other libraries"""
    torch.manual_seed(0)
    net = Unused().double()
    problem, meta = ms.few_shot(net, torch.nn.functional.mse_loss), ms.parameters(net)
    batch: tuple[Any, Any] = (torch.randn(3, 4, 2).double(), torch.randn(3, 4, 1).double())
    estimate = ms.MetaGradient(problem, ms.MultiStep(2), DYNAMICS[dynamics], steps=4)(meta, ms.Task(batch, batch))
    assert all(bool(g.isfinite().all()) for g in estimate.grad.values())
    assert float(estimate.grad["used.weight"].norm()) > 0
    assert float(estimate.grad["unused.weight"].abs().max()) == 0


def test_a_rate_that_is_learned_in_some_steps_of_a_window() -> None:
    p, params, tasks = case("regression")
    meta = ms.problems.with_rates(params, 0.05, 1)
    learned = ms.SGD(lambda meta, step: meta["rates"] if step % 2 else 0.1, momentum=0.5)
    p = ms.problems.accept_rates(p)
    for window in (1, 2, 4):
        swept, stored = (gradient(meta, tasks) for gradient in both(p, learned, 4, window))
        assert relative_error(swept.grad, stored.grad) < 1e-9


class Named:
    """A user's loss, with attributes of its own"""

    product = gradient = gradients = "of my own"

    def __call__(self, params: Tree, meta: Tree, batch: Any) -> torch.Tensor:
        del meta
        x, y = batch
        return (x @ params["w"] - y).square().mean()


def test_attributes_of_a_users_loss_are_its_own() -> None:
    loss = Named()
    problem = ms.Problem(lambda meta, task: meta, ms.every_window(loss), lambda p, m, task: loss(p, m, task.query))
    batch = (torch.randn(5, 2, dtype=torch.float64), torch.randn(5, dtype=torch.float64))
    meta, task = {"w": torch.ones(2, dtype=torch.float64)}, ms.Task(batch, batch)
    swept, stored = (gradient.estimator(meta, task) for gradient in both(problem, ms.SGD(0.1), 3))
    assert relative_error(swept.grad, stored.grad) < 1e-9
