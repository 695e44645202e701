"""Each method against a closed form, a limit, or plain autograd."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import metastep as ms
from metastep.core.curvature import Curvature
from metastep.core.trees import Tree, map_tree, norm, scale, subtract
from metastep.core.windows import Window
from tests.core.helpers import DYNAMICS, PROBLEMS, STEPS, case, first, randn, relative_error

F64 = torch.float64


def least_squares(x: torch.Tensor, y: torch.Tensor) -> Any:
    """A quadratic problem with φ starting from θ; support is (x, y), query (x', y')"""

    def loss(params: Tree, meta: Tree, batch: Any) -> torch.Tensor:
        del meta
        return 0.5 * (batch[0] @ params["w"] - batch[1]).square().mean()

    return ms.Problem(lambda meta, task: meta, ms.every_window(loss), lambda p, m, task: loss(p, m, task.query))


@pytest.fixture
def quadratic() -> tuple[ms.Problem, Tree, Any]:
    torch.manual_seed(0)
    x, y = randn(12, 4), randn(12)
    return least_squares(x, y), {"w": randn(4)}, ms.Task((x, y), (randn(9, 4), randn(9)))


# ---- first order and Reptile


@pytest.mark.parametrize("dynamics", DYNAMICS)
@pytest.mark.parametrize("problem", ["regression", "convolution"])
def test_first_order_is_the_outer_gradient_at_the_end(problem: str, dynamics: str) -> None:
    p, meta, tasks = case(problem)
    task = first(tasks)
    estimator = ms.fo_maml(p, DYNAMICS[dynamics], STEPS, 2)
    final = estimator.loop.adapt(meta, task)
    leaf = map_tree(lambda x: x.detach().requires_grad_(), final.params)
    p.outer_loss(leaf, meta, task)[0].backward()
    assert relative_error(estimator(meta, task).grad, {name: x.grad for name, x in leaf.items()}) < 1e-12


def test_first_order_sees_only_the_direct_part_of_a_disjoint_theta() -> None:
    p, meta, tasks = case("example_weights")
    estimate = ms.fo_maml(p, ms.SGD(0.1), 4)(meta, first(tasks))
    torch.testing.assert_close(estimate.grad["weight"], 0.2 * meta["weight"] / 6)
    p, meta, tasks = case("meta_network")
    assert float(norm(ms.fo_maml(p, ms.SGD(0.1), 4)(meta, first(tasks)).grad)) == 0


def test_reptile_is_the_way_the_inner_loop_went() -> None:
    p, meta, tasks = case("regression")
    estimator, task = ms.reptile(p, DYNAMICS["adam"], STEPS), first(tasks)
    final = estimator.loop.adapt(meta, task)
    assert relative_error(estimator(meta, task).grad, subtract(meta, final.params)) < 1e-14


def test_reptile_and_first_order_under_proximal_regularisation(quadratic: Any) -> None:
    """At φ* of L + ½λ‖φ−θ‖², ∇L(φ*) = λ(θ−φ*): with outer = inner loss, first order is λ times Reptile."""
    p, meta, task = quadratic
    same = task._replace(query=task.support)
    strength, proximal = 2.0, ms.proximal(p, 2.0)
    first_order = ms.fo_maml(proximal, ms.SGD(0.3), 300)(meta, same).grad
    reptile = ms.reptile(proximal, ms.SGD(0.3), 300)(meta, same).grad
    assert relative_error(scale(strength, reptile), first_order) < 1e-10
    assert relative_error(scale(strength, ms.reptile(proximal, ms.SGD(0.3), 300)(meta, task).grad),
                          ms.fo_maml(proximal, ms.SGD(0.3), 300)(meta, task).grad) > 1e-2  # fmt: skip


# ---- implicit


def closed_form(meta: Tree, task: Any, strength: float) -> torch.Tensor:
    x, y = task.support
    hessian, eye = x.T @ x / len(y), torch.eye(4, dtype=F64)
    solution = torch.linalg.solve(hessian + strength * eye, x.T @ y / len(y) + strength * meta["w"])
    return pulled_back(task, solution, strength)


def pulled_back(task: Any, params: torch.Tensor, strength: float) -> torch.Tensor:
    """(I + H/λ)⁻¹ ∇L(φ)"""
    (x, y), (xq, yq) = task
    outer = xq.T @ (xq @ params - yq) / len(yq)
    return torch.linalg.solve(torch.eye(4, dtype=F64) + x.T @ x / len(y) / strength, outer)


@pytest.mark.parametrize("solver", [ms.conjugate_gradient(4), ms.neumann(400, 0.25)], ids=["cg", "neumann"])
def test_imaml_equals_its_closed_form(quadratic: Any, solver: Any) -> None:
    p, meta, task = quadratic
    estimate = ms.imaml(p, ms.SGD(0.2), 200, strength=2.0, solver=solver)(meta, task)
    assert relative_error(estimate.grad["w"], closed_form(meta, task, 2.0)) < 1e-9


def test_imaml_with_a_free_inner_loop_is_damped_where_that_ends(quadratic: Any) -> None:
    p, meta, task = quadratic
    estimate = ms.imaml(p, ms.SGD(0.2), 3, strength=2.0, solver=ms.conjugate_gradient(4), free=True)(meta, task)
    (x, y), params = task.support, meta["w"]
    for _ in range(3):
        params = params - 0.2 * x.T @ (x @ params - y) / len(y)
    assert relative_error(estimate.grad["w"], pulled_back(task, params, 2.0)) < 1e-9


def test_imaml_equals_the_unrolled_gradient_of_a_converged_proximal_problem() -> None:
    p, meta, tasks = case("regression")
    proximal = ms.proximal(p, 2.0)
    for window in (1, 2):
        unrolled = ms.over_tasks(ms.multi_step(proximal, ms.SGD(0.1), 240, window))(meta, tasks)
        implicit = ms.over_tasks(ms.imaml(p, ms.SGD(0.1), 240, 2.0, ms.conjugate_gradient(40), window))(meta, tasks)
        assert relative_error(implicit.grad, unrolled.grad) < 1e-8


def test_implicit_gradients_learn_a_disjoint_theta_too() -> None:
    """With θ in the inner loss and a converged inner loop, the implicit gradient equals the unrolled one."""
    torch.manual_seed(0)
    x, y, xq, yq = randn(8, 3), randn(8), randn(8, 3), randn(8)

    def inner(params: Tree, meta: Tree, batch: Any) -> torch.Tensor:
        return (batch[0] @ params - batch[1]).square().mean() + (meta.exp() * params.square()).sum()

    problem = ms.Problem(
        lambda meta, task: torch.zeros(3, dtype=F64),
        ms.every_window(inner),
        lambda params, meta, task: (task.query[0] @ params - task.query[1]).square().mean(),
    )
    loop = ms.inner_loop(problem, ms.SGD(0.1), 200)
    task, meta = ms.Task((x, y), (xq, yq)), randn(3, scale=0.3)
    implicit = ms.implicit(loop, ms.conjugate_gradient(3))(meta, task)
    assert relative_error(implicit.grad, ms.unrolled(loop, store_every=25)(meta, task).grad) < 1e-9


def test_a_solved_system_stays_solved() -> None:
    b = torch.tensor([1.0, 2.0], dtype=F64)
    torch.testing.assert_close(ms.conjugate_gradient(50)(lambda v: 2 * v, b), b / 2)
    assert bool(ms.conjugate_gradient(3)(lambda v: v, torch.zeros(2, dtype=F64)).isfinite().all())


@pytest.mark.parametrize("size", [1.0, 1e-8, 1e-12, 1e-16, 1e-20])
@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-2, 0.3])
def test_a_system_is_solved_where_its_residual_is_too_small_to_be_squared(size: float, spread: float) -> None:
    h, b = 24 * (1 + spread * torch.linspace(-1, 1, 7)), torch.full((7,), size)
    x = ms.conjugate_gradient(9)(lambda v: h * v, b)
    assert (x * h / b - 1).abs().max() < (1e-5 if size > 1e-18 else 1e-2)  # float32, and the last is 1e-40 when squared


@pytest.mark.parametrize(
    ("bends", "steps"), [((3.0, 2.0, 1.0), 3), ((9.0, 3.0, -1.0), 2), ((4.0, 1.0, -2.0), 1), ((1.0, -3.0, -2.0), 0)]
)
def test_conjugate_gradients_stop_where_the_matrix_bends_down(bends: tuple[float, ...], steps: int) -> None:
    """As far as each step has a minimum along it: x is that of a solver with so many steps"""
    h, b = torch.tensor(bends, dtype=F64), torch.ones(3, dtype=F64)
    found = ms.conjugate_gradient(5)(lambda v: h * v, b)
    best = torch.zeros(3, dtype=F64)  # of the Krylov space: ½xᵀHx − bᵀx is least
    if steps:
        space = torch.stack([h**k * b for k in range(steps)], 1)
        best = space @ torch.linalg.solve(space.T @ (h[:, None] * space), space.T @ b)
    torch.testing.assert_close(found, best)


# ---- approximate curvature


def window_of(problem: ms.Problem, task: Any) -> Window:
    return problem.windows(task, [1])[0]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_central_differences_approach_exact_curvature(problem: str) -> None:
    for curvature, tolerance in ((ms.exact_forward, 1e-12), (ms.central_difference(1e-4), 1e-6)):
        assert product_error(problem, curvature) < tolerance


def test_hf_maml_is_exact_on_quadratics(quadratic: Any) -> None:
    p, meta, task = quadratic
    for dynamics in (ms.SGD(0.1), DYNAMICS["momentum"], DYNAMICS["nesterov"]):
        exact = ms.maml(p, dynamics, 5)(meta, task).grad
        assert relative_error(ms.hf_maml(p, dynamics, 5, delta=0.1)(meta, task).grad, exact) < 1e-9


def test_a_zero_direction_gives_a_zero_product(quadratic: Any) -> None:
    p, meta, task = quadratic
    h, c = ms.central_difference()(window_of(p, task), meta, meta, map_tree(torch.zeros_like, meta))
    assert float(norm(h)) == float(norm(c)) == 0


@pytest.mark.parametrize("problem", ["regression", "meta_network"])
def test_gaussian_smoothing_converges(problem: str) -> None:
    """The error falls like 1/√samples: sixteen times the samples, a quarter of it"""
    errors = [product_error(problem, ms.gaussian_smoothing(samples, sigma=1e-3)) for samples in (64, 1024)]
    assert errors[1] < 0.5 * errors[0]
    assert errors[1] < 0.35


def test_zeroth_order_converges() -> None:
    errors = [product_error("regression", ms.zeroth_order(samples, sigma=1e-2)) for samples in (128, 2048)]
    assert errors[1] < 0.5 * errors[0]


def product_error(problem: str, curvature: Curvature) -> float:
    p, meta, tasks = case(problem)
    task = first(tasks)
    params = p.start(meta, task)
    direction = map_tree(torch.cos, params)
    with torch.no_grad():
        exact = ms.exact(window_of(p, task), params, meta, direction)
        estimate = curvature(window_of(p, task), params, meta, direction)
    return relative_error(estimate, exact)


# ---- truncation, ANIL, learned rates, MAML++


def test_truncation_equals_a_sweep_from_where_it_stops(quadratic: Any) -> None:
    p, meta, task = quadratic
    sgd = ms.SGD(0.1)
    loop = ms.inner_loop(p, sgd, 3)
    middle = loop.adapt(meta, task).params
    late = ms.truncated(p, sgd, 8, depth=5)(meta, task)
    assert relative_error(late.grad, ms.maml(p, sgd, 5)(middle, task).grad) < 1e-12


def is_head(name: str) -> bool:
    return name.startswith("4.")


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("dynamics", ["momentum", "adam"])
def test_anil_adapts_the_head_alone_and_learns_all(dynamics: str, window: int) -> None:
    p, meta, tasks = case("convolution")
    task = first(tasks)
    estimator = ms.anil(p, DYNAMICS[dynamics], STEPS, is_head, window)
    final = estimator.loop.adapt(meta, task)
    assert set(final.params) == {"4.weight", "4.bias"}
    estimate = ms.over_tasks(estimator)(meta, tasks)
    assert relative_error(estimate.grad, ms.over_tasks(ms.backprop(estimator.loop))(meta, tasks).grad) < 1e-9

    # The same by hand: body rates of 0 in an inner loop over everything
    held = {name: (0.1 if is_head(name) else 0.0) for name in meta}
    by_rates = ms.over_tasks(ms.multi_step(p, ms.SGD(held), STEPS, window))(meta, tasks)
    anil = ms.over_tasks(ms.anil(p, ms.SGD(0.1), STEPS, is_head, window))(meta, tasks)
    assert relative_error(anil.grad, by_rates.grad) < 1e-9


@pytest.mark.parametrize("window", [1, 2, 8])
@pytest.mark.parametrize("dynamics", ["sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop"])
def test_meta_sgd_learns_a_rate_for_every_entry(dynamics: str, window: int) -> None:
    p, params, tasks = case("regression")
    meta = ms.with_rates(params, lr=0.02)
    estimator = ms.meta_sgd(p, DYNAMICS[dynamics], STEPS, window)  # type: ignore[arg-type]
    estimate = ms.over_tasks(estimator)(meta, tasks)
    assert relative_error(estimate.grad, ms.over_tasks(ms.backprop(estimator.loop))(meta, tasks).grad) < 1e-9
    assert float(norm(estimate.grad["rates"])) > 0

    constant = ms.over_tasks(ms.multi_step(p, replace(DYNAMICS[dynamics], lr=0.02), STEPS, window))(params, tasks)
    assert relative_error(estimate.grad["params"], constant.grad) < 1e-9


def test_learned_rates_agree_with_finite_differences() -> None:
    p, params, tasks = case("regression")
    task = first(tasks)
    estimator, lr = ms.meta_sgd(p, DYNAMICS["momentum"], 8, 4), ms.with_rates(params, 0.02)  # type: ignore[arg-type]
    h = 1e-6
    ahead, behind = (
        estimator({**lr, "rates": map_tree(lambda r, s=s: r + s, lr["rates"])}, task).loss for s in (h, -h)
    )
    total = sum(g.sum() for g in estimator(lr, task).grad["rates"].values())
    torch.testing.assert_close(total, (ahead - behind) / (2 * h), rtol=1e-6, atol=1e-8)


def test_learned_rates_combine_with_anil() -> None:
    p, params, tasks = case("convolution")
    head_only = ms.adapt_only(p, is_head)
    meta = ms.with_rates(params, 0.1, head=is_head)
    estimator = ms.meta_sgd(head_only, ms.SGD(0.1, momentum=0.9), STEPS, window=4)
    estimate = ms.over_tasks(estimator)(meta, tasks)
    assert relative_error(estimate.grad, ms.over_tasks(ms.backprop(estimator.loop))(meta, tasks).grad) < 1e-9
    assert set(estimate.grad["rates"]) == {"4.weight", "4.bias"}


@pytest.mark.parametrize("weights", [None, [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.0, 1.0]])
def test_maml_pp_weighs_the_loss_after_every_window(weights: list[float] | None) -> None:
    p, params, tasks = case("regression")
    meta = ms.with_rates(params, 0.02, steps=STEPS)
    sgd = ms.SGD(0.02, momentum=0.9)
    estimator = ms.maml_pp(p, sgd, STEPS, weights, window=2)
    estimate = ms.over_tasks(estimator)(meta, tasks)
    reference = ms.over_tasks(ms.backprop(estimator.loop, weights or [0.25] * 4))(meta, tasks)
    assert relative_error(estimate.grad, reference.grad) < 1e-9
    torch.testing.assert_close(estimate.loss, reference.loss)
    assert all(rate.shape == (STEPS,) for rate in estimate.grad["rates"].values())
    if weights == [0.0, 0.0, 0.0, 1.0]:
        last = ms.over_tasks(ms.multi_step(p, sgd, STEPS, 2))(params, tasks)
        assert relative_error(estimate.grad["params"], last.grad) < 1e-9


def test_weights_combine_with_recomputed_segments() -> None:
    p, meta, tasks = case("convolution")
    loop = ms.inner_loop(p, DYNAMICS["adam"], STEPS, 2)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=F64)
    a = ms.over_tasks(ms.unrolled(loop, weights=weights, store_every=3))(meta, tasks)
    assert relative_error(a.grad, ms.over_tasks(ms.backprop(loop, weights))(meta, tasks).grad) < 1e-9


def phases(seed: int) -> ms.Task:
    """Sines of random phase: five points to adapt to, ten to be judged by"""
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(16, 15, 1, generator=generator) - 2
    y = torch.sin(x + 3 * torch.rand(16, 1, 1, generator=generator))
    return ms.Task((x[:, :5], y[:, :5]), (x[:, 5:], y[:, 5:]))


@pytest.mark.parametrize("method", ["maml", "multi_step", "fo_maml", "hf_maml", "imaml", "reptile", "ggs_maml"])
def test_methods_learn(method: str) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    problem, meta = ms.few_shot(net, F.mse_loss), ms.parameters_of(net)
    options = {"window": 2} if method == "multi_step" else {}
    step = ms.over_tasks(getattr(ms, method)(problem, ms.SGD(0.05), 4, **options))
    optimizer = torch.optim.Adam(meta.values(), lr=1e-2)
    before = float(step(meta, phases(1000)).loss)
    for k in range(80):
        ms.write_grads(meta, step(meta, phases(k)).grad)
        optimizer.step()
    assert float(step(meta, phases(1000)).loss) < 0.8 * before
