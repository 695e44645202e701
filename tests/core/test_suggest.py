"""`suggest` against closed forms, autograd, and what long loops do."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import metastep as ms
from metastep.core.counting import counting
from metastep.core.stability import lanczos, longest_stable, radius, rule_of
from study.experiments.stable_windows import LOOPS, SECOND, outcome, ruled


def few_shot_of_tanh() -> tuple[ms.Problem, nn.Module, ms.Task]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    batches = [(torch.randn(3, 6, 2).double(), torch.randn(3, 6, 1).double()) for _ in range(2)]
    return ms.few_shot(net, F.mse_loss), net, ms.Task(*batches)


# ---- stability


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_radius_is_that_of_the_map_of_a_window(momentum: float, nesterov: bool, steps: int) -> None:
    """The map, column by column, by the optimizer itself"""
    if nesterov and not momentum:
        pytest.skip("Nesterov needs momentum")
    inner, curvature = ms.SGD(0.3, momentum=momentum, weight_decay=0.1, nesterov=nesterov), 1.7

    def after(p: float, v: float) -> list[Tensor]:
        memory = (torch.tensor(v, dtype=torch.float64),) if momentum else ()
        state = ms.optimizers.State(torch.tensor(p, dtype=torch.float64), memory, 3)
        moved = inner.advance(state, curvature * state.params, (), steps)
        return [moved.params, *moved.memory]

    columns = [after(1.0, 0.0), after(0.0, 1.0)] if momentum else [after(1.0, 0.0)]
    matrix = torch.stack([torch.stack(column) for column in columns], 1)
    expected = torch.linalg.eigvals(matrix).abs().max()
    assert radius(inner, steps, curvature) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(("momentum", "limits"), [(0.0, (2, 1, 2 / 3, 0.5)), (0.9, (3.8, 0.211, 0.108, 0.073))])
def test_the_border_of_stability_is_the_known_one(momentum: float, limits: tuple[float, ...]) -> None:
    """Momentum does not act like a higher rate: the stale gradient drives it"""
    for n, limit in enumerate(limits, 1):
        assert longest_stable(ms.SGD(1.0, momentum=momentum), 0.94 * limit) >= n
        assert longest_stable(ms.SGD(1.0, momentum=momentum), 1.01 * limit) < n


def test_adam_is_sgd_on_what_its_second_moment_preconditions() -> None:
    """Where the moment is constant, so that the preconditioned quadratic is one of SGD"""
    rule = rule_of(ms.Adam(0.1, betas=(0.5, 0.9)))
    assert rule is not None
    assert rule.scale is not None
    assert rule.like == ms.SGD(0.05, momentum=0.5)
    state = ms.optimizers.State(torch.zeros(2), (torch.zeros(2), torch.tensor([0.19, 0.76])), 2)
    torch.testing.assert_close(rule.scale(state), torch.tensor([1.0, 2.0]))
    assert rule_of(ms.SGD(lambda meta, step: 0.1)) is None
    assert rule_of(ms.StepFunction(lambda p, m, g, meta, t: (p, m))) is None


def test_lanczos_finds_the_largest_eigenvalue() -> None:
    torch.manual_seed(0)
    q, _ = torch.linalg.qr(torch.randn(30, 30, dtype=torch.float64))
    matrix = q @ torch.diag(torch.linspace(-3, 5, 30, dtype=torch.float64)) @ q.T
    start = torch.randn(30, dtype=torch.float64)
    assert lanczos(lambda v: matrix @ v, start, 30) == pytest.approx(5, rel=1e-9)
    assert 4 < lanczos(lambda v: matrix @ v, start, 6) <= 5
    assert lanczos(lambda v: 2 * v, start, 6) == pytest.approx(2)  # one direction is all there is


@pytest.mark.parametrize("name", ["quadratic, SGD 1.9", "linear, SGD 0.5", "linear, Adam 0.005", "tanh 32, SGD 0.1"])
def test_the_rule_is_right_or_one_too_strict_on_long_loops(name: str) -> None:
    """`python -m study run stable_windows` has all of them, and the one where it is not"""
    loop = LOOPS[name]()
    longest = ruled(loop).longest
    assert longest is not None
    found = outcome(loop, most=longest + 2)
    assert found - 1 <= longest <= found


# ---- the report


@pytest.mark.parametrize("inner", [ms.SGD(0.1), ms.SGD(0.1, momentum=0.9), ms.Adam(0.01), ms.RMSprop(0.01)])
@pytest.mark.parametrize("steps", [1, 3, 8, 40])
def test_a_task_takes_at_most_60_gradients_and_products(inner: Any, steps: int) -> None:
    problem, net, tasks = few_shot_of_tanh()
    with counting() as counts:
        found = ms.suggest(problem, inner, steps=steps, meta=net, tasks=tasks)
    assert counts.gradients + counts.products <= 60
    assert [row.window for row in found.windows] == [n for n in (1, 2, 4, 8) if n <= steps]
    assert all(math.isfinite(number) for row in found.windows for number in row)
    assert found.sentence in str(found) or not found.curvatures


def test_rows_are_those_of_the_methods() -> None:
    problem, net, tasks = few_shot_of_tanh()
    inner = ms.SGD(0.1, momentum=0.9)
    found = ms.suggest(problem, inner, steps=8, meta=net, tasks=tasks)
    gradients = {n: ms.MetaGradient(problem, ms.MultiStep(window=n), inner, steps=8) for n in (1, 2, 4, 8)}
    compared = ms.compare({str(n): gradient for n, gradient in gradients.items()}, net, tasks)
    for row, other in zip(found.windows, compared, strict=True):
        growth = gradients[row.window](net, tasks).growth
        assert growth is not None
        assert row.growth == pytest.approx(float(growth.median()), rel=1e-9)
        assert row.cosine == pytest.approx(other.cosine, abs=1e-9)


def test_the_curvature_is_the_largest_eigenvalue_of_the_hessian() -> None:
    """At step 0, with as many products as there are parameters of a quadratic"""
    torch.manual_seed(0)
    net, (x, y) = nn.Linear(3, 1, bias=False).double(), (torch.randn(1, 9, 3).double(), torch.randn(1, 9, 1).double())
    found = ms.suggest(ms.few_shot(net, F.mse_loss), ms.SGD(0.01), steps=4, meta=net, tasks=ms.Task((x, y), (x, y)))
    hessian = 2 * x[0].T @ x[0] / 9
    assert found.curvatures[0].step == 0
    assert found.curvatures[0].curvature == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-9)


def test_the_direction_of_shape_is_where_gradients_change_less() -> None:
    """A quadratic whose gradients change most at first: short windows first"""
    tasks = few_shot_of_tanh()[2]
    net = nn.Linear(2, 1).double()
    found = ms.suggest(ms.few_shot(net, F.mse_loss), ms.SGD(0.2), steps=8, meta=net, tasks=tasks)
    assert found.shape == (1, 2, 2, 3)
    assert set(found.shapes) == {(2, 2, 2, 2), (1, 2, 2, 3), (3, 2, 2, 1)}


def test_a_curvature_that_rises_is_allowed_for_and_told() -> None:
    """The curvature of a net with ReLU rises sixfold while it learns wrong labels; that of a linear one falls"""
    loop = SECOND["ReLU 32, SGD 0.1"]()
    found = ruled(loop)
    first, last = found.curvatures
    assert last.curvature > 1.5 * first.curvature
    assert last.window == longest_stable(loop.inner, 2 * last.curvature - first.curvature)
    assert "The curvature rises" in str(found)
    steady = ruled(LOOPS["linear, SGD 0.5"]())
    assert steady.curvatures[-1].window == longest_stable(ms.SGD(0.5), steady.curvatures[-1].curvature)
    assert "The curvature rises" not in str(steady)


def test_its_failure_cases_are_printed_with_it() -> None:
    problem, net, tasks = few_shot_of_tanh()
    short = str(ms.suggest(problem, ms.Adam(0.01), steps=8, meta=net, tasks=tasks))
    assert "too strict" in short
    assert "second moment" in short
    long = str(ms.suggest(problem, ms.SGD(lambda meta, step: 0.1), steps=20, meta=net, tasks=tasks))
    assert "first 8 of 20 steps" in long
    assert "no rule of stability for SGD" in long


def test_a_sweep_that_explodes_is_told() -> None:
    problem, net, tasks = few_shot_of_tanh()
    found = ms.suggest(problem, ms.SGD(3.0, momentum=0.9), steps=8, meta=net, tasks=tasks)
    assert max(row.growth for row in found.windows) > 100
    assert "clip the meta-gradient" in found.sentence
