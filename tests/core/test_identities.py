"""What the paper proves, and the golden numbers of an independent computation."""

from typing import Any

import numpy as np
import pytest
import torch

import metastep as ms
from metastep.core.counting import counting
from tests.core.helpers import PROBLEMS, case, relative_error

F64 = torch.float64
MU, OMEGA, ETA = 0.9, 1e-4, 0.1


def unit(g: float, p: float, steps: int, dynamics: ms.SGD) -> float:
    """φ after `steps` steps of a scalar that starts at p, with the constant gradient g"""
    state = dynamics.advance(dynamics.init(torch.tensor(p, dtype=F64)), torch.tensor(g, dtype=F64), None, steps)
    return float(state.params)


def lemma(steps: int, mu: float, omega: float, eta: float) -> tuple[float, float, float, float]:
    """Lemma 1's recurrences, as printed: (b_v, c_v, b_φ, c_φ) after `steps` steps from v = 0"""
    bv, cv, bp, cp = 0.0, 0.0, 0.0, 1.0
    for _ in range(steps):
        bv, cv, bp, cp = (
            mu * bv + 1 + omega * bp,
            mu * cv + omega * cp,
            -eta * mu * bv - eta + (1 - eta * omega) * bp,
            -eta * mu * cv + (1 - eta * omega) * cp,
        )
    return bv, cv, bp, cp


@pytest.mark.parametrize("steps", range(1, 9))
def test_lemma_1(steps: int) -> None:
    sgd = ms.SGD(ETA, momentum=MU, weight_decay=OMEGA)
    state = sgd.advance(sgd.init(torch.tensor([0.0, 1.0], dtype=F64)), torch.tensor([1.0, 0.0], dtype=F64), None, steps)
    bv, cv, bp, cp = lemma(steps, MU, OMEGA, ETA)
    np.testing.assert_allclose(state.params, [bp, cp], rtol=1e-13)
    np.testing.assert_allclose(state.memory[0], [bv, cv], rtol=1e-12)
    golden = [-0.1, -0.289999, -0.5609952, -0.9048861701, -1.3143789943, -1.7829093922, -2.3045689213, -2.8740394518]
    assert bp == pytest.approx(golden[steps - 1], abs=1e-10)
    assert cp == pytest.approx(1 + OMEGA * bp, abs=1e-12)


def test_proposition_1() -> None:
    """Two shared steps are not one step with other hyper-parameters: the third window contradicts the first two."""
    sgd = ms.SGD(ETA, momentum=MU, weight_decay=OMEGA)
    b3, c3, b5, b7 = unit(1, 0, 2, sgd), unit(0, 1, 2, sgd), unit(1, 0, 4, sgd), unit(1, 0, 6, sgd)
    eta = -b3
    omega = (1 - c3) / eta
    mu = -b5 / eta - 2 + eta * omega
    assert (eta, omega, mu) == pytest.approx((0.289999, OMEGA, 1.1203368977), abs=1e-9)
    one_step = ms.SGD(eta, momentum=mu, weight_decay=omega)
    assert unit(1, 0, 2, one_step) == pytest.approx(b5, abs=1e-12)
    assert unit(1, 0, 3, one_step) == pytest.approx(-1.8837397130, abs=1e-9)
    assert b7 == pytest.approx(-1.7829093922, abs=1e-9)


A = torch.tensor([[1.0, 0.3], [0.3, 0.5]], dtype=F64)
B = torch.tensor([[0.2, -0.1, 0.4], [0.0, 0.3, -0.2]], dtype=F64)
C = torch.tensor([[0.7, 0.1], [0.1, 0.9]], dtype=F64)
Y = torch.tensor([1.0, -1.0], dtype=F64)
PHI = torch.tensor([0.5, -0.25], dtype=F64)
V = torch.tensor([0.1, 0.2], dtype=F64)
THETA = torch.tensor([0.3, -0.6, 0.9], dtype=F64)


def quadratic(velocity: torch.Tensor | None) -> ms.Problem:
    """Inner ½φᵀAφ − φᵀBθ, outer ½(φ−y)ᵀC(φ−y); `protocol` golden numbers start with a velocity"""
    memory = () if velocity is None else (velocity,)
    return ms.Problem(
        lambda meta, task: ms.optimizers.State(PHI, memory),
        ms.every_window(lambda phi, theta, _: 0.5 * phi @ A @ phi - phi @ (B @ theta)),
        lambda phi, theta, task: 0.5 * (phi - Y) @ C @ (phi - Y),
    )


@pytest.mark.parametrize(
    ("window", "golden"),
    [
        (1, (-0.05309909, -0.05614939, -0.05106556)),
        (2, (-0.06036738, -0.08623252, -0.04312395)),
        (4, (-0.0836793, -0.14806254, -0.04075715)),
        (8, (-0.18464009, -0.29772443, -0.10925053)),
    ],
)
def test_golden_meta_gradients(window: int, golden: tuple[float, ...]) -> None:
    sgd = ms.SGD(ETA, momentum=MU, weight_decay=OMEGA)
    gradient = ms.MetaGradient(quadratic(V), ms.MultiStep(window), sgd, steps=8)
    estimate = gradient.estimator(THETA, ms.Task((), ()))
    np.testing.assert_allclose(estimate.grad, golden, atol=1e-8)


def test_golden_adjoint_of_l2t_ww() -> None:
    """L2T-ww's own example: ten momentum steps, θ weighs a loss of φ"""
    start = {"v1": torch.tensor([1.0, 3.0], dtype=F64), "v2": torch.tensor([[-1.0, -2.0], [1.0, 0.0]], dtype=F64)}
    problem = ms.Problem(
        lambda meta, task: start,
        ms.every_window(lambda p, m, _: p["v1"].square().mean() + (m * p["v2"].square()).sum()),
        lambda p, m, task: (p["v1"] * p["v2"]).mean(),
    )
    sgd = ms.SGD(0.1, momentum=0.9, weight_decay=0.01)
    gradient = ms.MetaGradient(problem, ms.MAML(), sgd, steps=10)
    estimate = gradient.estimator(torch.zeros(2, 2, dtype=F64), ms.Task((), ()))
    np.testing.assert_allclose(estimate.grad, [[-1.1952, -7.1712], [1.1952, 0.0]], atol=2e-3)


@pytest.mark.parametrize("window", [2, 4, 8])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_naive_sgd_is_a_larger_rate_and_fewer_steps(problem: str, window: int) -> None:
    p, meta, tasks = case(problem)
    shared = ms.MetaGradient(p, ms.MultiStep(window), ms.SGD(0.02), steps=8)(meta, tasks)
    scaled = ms.SGD(
        lambda meta, step: 0.02 * window if step < 8 // window else 0.02
    )  # a last window may have its own loss
    larger = ms.MetaGradient(p, ms.MAML(), scaled, steps=8 // window)(meta, tasks)
    assert relative_error(shared.grad, larger.grad) < 1e-12
    torch.testing.assert_close(shared.loss, larger.loss)


@pytest.mark.parametrize(("eta", "rate"), [(0.4, 11.494), (0.01, 0.28742), (0.04, 1.14966)])
def test_eight_of_eight_is_one_sgd_step(eta: float, rate: float) -> None:
    momentum = ms.SGD(eta, momentum=MU, weight_decay=OMEGA)
    displacement = -unit(1, 0, 8, momentum)
    assert displacement == pytest.approx(rate, rel=1e-3)
    decay = (1 - unit(0, 1, 8, momentum)) / displacement
    assert decay == pytest.approx(OMEGA, abs=1e-10)
    p, meta, tasks = case("regression")
    shared = ms.MetaGradient(p, ms.MultiStep(8), momentum, steps=8)(meta, tasks)
    sgd = ms.SGD(displacement, weight_decay=decay)
    once = ms.MetaGradient(p, ms.MAML(), sgd, steps=1)(meta, tasks)
    assert relative_error(shared.grad, once.grad) < 1e-9


@pytest.mark.parametrize(
    ("eta", "rate", "mu"), [(0.4, 3.61938, 1.17609), (0.01, 0.0904899, 1.17626), (0.04, 0.361958, 1.17625)]
)
def test_four_of_eight_is_a_two_step_run(eta: float, rate: float, mu: float) -> None:
    momentum = ms.SGD(eta, momentum=MU, weight_decay=OMEGA)
    displacement = -unit(1, 0, 4, momentum)
    warm = momentum.advance(momentum.init(torch.tensor(0.0, dtype=F64)), torch.tensor(1.0, dtype=F64), None, 4)
    coasting = float(momentum.advance(warm, torch.tensor(0.0, dtype=F64), None, 4).params)
    two_step_mu = -coasting / displacement - (1 - displacement * OMEGA)
    assert (displacement, two_step_mu) == pytest.approx((rate, mu), rel=1e-5)
    p, meta, tasks = case("regression")
    shared = ms.MetaGradient(p, ms.MultiStep(4), momentum, steps=8)(meta, tasks)
    twice = ms.SGD(displacement, momentum=two_step_mu, weight_decay=OMEGA)
    assert relative_error(shared.grad, ms.MetaGradient(p, ms.MAML(), twice, steps=2)(meta, tasks).grad) < 1e-9
    three = ms.MetaGradient(p, ms.MultiStep(4), momentum, steps=12)(meta, tasks)
    assert relative_error(three.grad, ms.MetaGradient(p, ms.MAML(), twice, steps=3)(meta, tasks).grad) > 1e-6


def counts(method: ms.methods.Method, dynamics: ms.optimizers.InnerOptimizer) -> tuple[int, int]:
    p, meta, tasks = case("regression")
    gradient = ms.MetaGradient(p, method, dynamics, steps=8)
    with counting() as counted:
        gradient(gradient.init(meta), tasks)
    return counted.gradients, counted.products


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (ms.MAML(), (9, 8)),
        (ms.MultiStep(2), (5, 4)),
        (ms.MultiStep(4), (3, 2)),
        (ms.MultiStep(8), (2, 1)),
        (ms.MultiStep(3), (4, 3)),
        (ms.methods.Truncated(depth=3), (9, 3)),
        (ms.FOMAML(), (9, 0)),
        (ms.Reptile(), (8, 0)),
        (ms.methods.HFMAML(), (9 + 16, 0)),
        (ms.methods.GGSMAML(samples=3), (9 + 48, 0)),
        (ms.methods.ESMAML(samples=3), (9, 0)),
        (ms.IMAML(), (9, 6)),
        (ms.methods.ANIL(head="2."), (9, 8)),
        (ms.MetaSGD(), (9, 8)),
        (ms.methods.MAMLPP(), (8 + 8, 8)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("dynamics", [ms.SGD(0.1, momentum=0.9), ms.Adam(0.01)], ids=["sgd", "adam"])
def test_second_order_products_are_counted(dynamics: Any, method: Any, expected: tuple[int, int]) -> None:
    """T for MAML, T/n for Multi-step(n), none for first order; gradients: one for each window, and the outer ones"""
    assert counts(method, dynamics) == expected
