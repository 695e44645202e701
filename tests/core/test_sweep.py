"""The reverse sweep is exact: it equals autograd through the stored unroll, and finite differences, for everything."""

from typing import Any

import pytest
import torch

import metastep as ms
from metastep.core.trees import Tree, dot, map_tree, normal_like
from metastep.core.windows import outer_value
from tests.core.helpers import DYNAMICS, PROBLEMS, STEPS, case, first, relative_error


@pytest.mark.parametrize("window", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("dynamics", DYNAMICS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_equals_autograd_through_the_unroll(problem: str, dynamics: str, window: int) -> None:
    p, meta, tasks = case(problem)
    swept = ms.over_tasks(ms.multi_step(p, DYNAMICS[dynamics], STEPS, window))(meta, tasks)
    stored = ms.over_tasks(ms.reference(p, DYNAMICS[dynamics], STEPS, window))(meta, tasks)
    assert relative_error(swept.grad, stored.grad) < 1e-9
    torch.testing.assert_close(swept.metrics, stored.metrics, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("dynamics", ["momentum", "adam", "own"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_options_do_not_change_the_result(problem: str, dynamics: str, window: int) -> None:
    p, meta, tasks = case(problem)
    loop = ms.inner_loop(p, DYNAMICS[dynamics], STEPS, window)
    plain = ms.over_tasks(ms.unrolled(loop))(meta, tasks)
    for estimator, chunk in (
        (ms.unrolled(loop, ms.exact_forward), None),
        (ms.unrolled(loop, store_every=1), None),
        (ms.unrolled(loop, store_every=3), 2),
        (ms.unrolled(loop, store_every=100), 1),
        (ms.unrolled(loop, depth=100), 3),
    ):
        other = ms.over_tasks(estimator, chunk_size=chunk)(meta, tasks)
        assert relative_error(other.grad, plain.grad) < 1e-9
        torch.testing.assert_close(other.metrics, plain.metrics)


@pytest.mark.parametrize("window", [1, 3, 8])
@pytest.mark.parametrize("dynamics", DYNAMICS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_finite_differences_agree(problem: str, dynamics: str, window: int) -> None:
    p, meta, tasks = case(problem)
    task, estimator = first(tasks), ms.multi_step(p, DYNAMICS[dynamics], STEPS, window)
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
    swept = ms.over_tasks(ms.multi_step(p, DYNAMICS["momentum"], lengths))(meta, tasks)
    stored = ms.over_tasks(ms.reference(p, DYNAMICS["momentum"], lengths))(meta, tasks)
    assert relative_error(swept.grad, stored.grad) < 1e-9


def test_lengths_of_windows() -> None:
    assert ms.window_lengths(8, 3) == (3, 3, 2)
    assert ms.window_lengths(8, 8) == (8,)
    assert ms.window_lengths(3, 8) == (3,)
    assert ms.window_lengths(3) == (1, 1, 1)
    assert ms.window_lengths([4, 2, 1, 1]) == (4, 2, 1, 1)


def test_each_window_may_have_its_own_batch() -> None:
    net = torch.nn.Linear(2, 1).double()
    loss = lambda params, meta, batch: torch.nn.functional.mse_loss(  # noqa: E731
        batch[0] @ params["weight"].T + params["bias"], batch[1]
    )
    torch.manual_seed(0)
    batches = [(torch.randn(4, 2).double(), torch.randn(4, 1).double()) for _ in range(3)]
    task = ms.Task(batches, batches[0])
    problem = ms.Problem(
        lambda meta, task: meta, ms.batch_by_batch(loss), lambda params, meta, task: loss(params, meta, task.query)
    )
    meta = ms.parameters_of(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    estimate = ms.maml(problem, ms.SGD(0.1), 3)(meta, task)
    for x, y in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(estimate.loss, torch.nn.functional.mse_loss(net(batches[0][0]), batches[0][1]).detach())
    assert relative_error(estimate.grad, ms.reference(problem, ms.SGD(0.1), 3)(meta, task).grad) < 1  # θ has moved
    with pytest.raises(ms.MetastepError, match="3 support batches for 2 windows"):
        ms.maml(problem, ms.SGD(0.1), 2)(meta, task)


def test_an_optimizer_state_carries_over_and_is_left_alone() -> None:
    """As in L2T-ww: the inner loop starts from a real optimizer's velocity, and leaves no trace."""
    p, meta, tasks = case("two_losses")
    for dynamics in (DYNAMICS["momentum"], DYNAMICS["adam"]):
        task = first(tasks)
        warm = dynamics.advance(dynamics.init(task.start), map_tree(torch.sin, task.start), meta, 5)
        carried = p._replace(start=lambda meta, task, warm=warm: warm)
        kept = map_tree(torch.clone, tuple(warm[:2]))
        swept = ms.multi_step(carried, dynamics, 4, 2)(meta, task)
        assert relative_error(swept.grad, ms.reference(carried, dynamics, 4, 2)(meta, task).grad) < 1e-9
        assert relative_error(swept.grad, ms.multi_step(p, dynamics, 4, 2)(meta, task).grad) > 1e-3
        assert relative_error(tuple(warm[:2]), kept) == 0


class Unused(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("dynamics", ["adam", "adamw", "rmsprop"])
def test_a_parameter_without_gradient_keeps_everything_finite(dynamics: str) -> None:
    """√v has an infinite slope at v = 0, which made whole meta-gradients NaN in other libraries"""
    torch.manual_seed(0)
    net = Unused().double()
    problem, meta = ms.few_shot(net, torch.nn.functional.mse_loss), ms.parameters_of(net)
    batch: tuple[Any, Any] = (torch.randn(3, 4, 2).double(), torch.randn(3, 4, 1).double())
    estimate = ms.over_tasks(ms.multi_step(problem, DYNAMICS[dynamics], 4, 2))(meta, ms.Task(batch, batch))
    assert all(bool(g.isfinite().all()) for g in estimate.grad.values())
    assert float(estimate.grad["used.weight"].norm()) > 0
    assert float(estimate.grad["unused.weight"].abs().max()) == 0


def test_a_rate_that_is_learned_in_some_steps_of_a_window() -> None:
    p, params, tasks = case("regression")
    meta = ms.with_rates(params, 0.05, 1)
    learned = ms.SGD(lambda meta, step: meta["rates"] if step % 2 else 0.1, momentum=0.5)
    p = ms.room_for_rates(p)
    for window in (1, 2, 4):
        swept = ms.over_tasks(ms.multi_step(p, learned, 4, window))(meta, tasks)
        stored = ms.over_tasks(ms.reference(p, learned, 4, window))(meta, tasks)
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
    sgd = ms.SGD(0.1)
    assert (
        relative_error(ms.maml(problem, sgd, 3)(meta, task).grad, ms.reference(problem, sgd, 3)(meta, task).grad) < 1e-9
    )
