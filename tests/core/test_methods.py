"""Each method against a closed form, a limit, or plain autograd."""

import pickle
from collections.abc import Collection
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import metastep as ms
from metastep.core import registry
from metastep.core.trees import Tree, dot, map_tree, norm, normal_like, scale, subtract
from metastep.core.windows import Window, inner_loop
from metastep.step.mapped import mapped
from tests.core.helpers import (
    APPROXIMATE,
    DYNAMICS,
    METHODS,
    PROBLEMS,
    RANDOM,
    STEPS,
    Swept,
    by_autograd,
    case,
    first,
    is_head,
    method,
    randn,
    relative_error,
)

F64 = torch.float64
NAMES = registry.names("method")
over_methods = pytest.mark.parametrize("name", NAMES)
CG = ms.solvers.ConjugateGradient


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


# ---- every registered method


def test_the_tables_name_registered_methods_alone() -> None:
    assert {*METHODS, *APPROXIMATE, *RANDOM} <= set(NAMES)


WRITTEN = {  # with every option
    "maml": ms.MAML(curvature=ms.curvature.exact_forward),
    "multi_step": ms.MultiStep(window=[4, 2, 2], curvature=ms.curvature.CentralDifference(delta=0.2)),
    "truncated": ms.methods.Truncated(depth=3, window=[2, 1, 1], curvature=ms.curvature.GaussianSmoothing(samples=4)),
    "fo_maml": ms.FOMAML(window=[1, 3]),
    "reptile": ms.Reptile(window=2, keep_memory=True),
    "imaml": ms.IMAML(0.5, ms.solvers.Neumann(steps=9, rate=0.1), 2, ms.curvature.exact_forward, free=True),
    "hf_maml": ms.methods.HFMAML(delta=0.3, window=2),
    "ggs_maml": ms.methods.GGSMAML(samples=3, sigma=0.2, window=2),
    "es_maml": ms.methods.ESMAML(samples=3, sigma=0.2, window=2),
    "anil": ms.methods.ANIL(head=is_head, window=2, curvature=ms.curvature.ZerothOrder(samples=2, sigma=0.3)),
    "meta_sgd": ms.MetaSGD(window=2, curvature=ms.curvature.exact_forward),
    "maml_pp": ms.methods.MAMLPP(weights=torch.tensor([0.25, 0.75]), window=2, curvature=ms.curvature.exact_forward),
    "reference": ms.methods.Reference(window=[2, 2], weights=[0.25, 0.75]),
}
PLACES = {**vars(ms.methods), **vars(ms.curvature), **vars(ms.solvers), "is_head": is_head}


@pytest.mark.parametrize("made", [*map(method, NAMES), *WRITTEN.values()], ids=repr)
def test_a_method_is_a_value(made: ms.methods.Method) -> None:
    options = {field.name: getattr(made, field.name) for field in fields(made)}  # type: ignore[arg-type]
    others = [type(made)(**options), pickle.loads(pickle.dumps(made)), deepcopy(made), replace(made)]  # type: ignore[type-var]
    others.append(eval(repr(made), PLACES))
    for other in others:
        assert type(other) is type(made)
        assert other == made
        assert hash(other) == hash(made)
        assert repr(other) == repr(made)
    assert {made: 1}[others[0]] == 1
    assert made != Swept(depth=99)


@pytest.mark.parametrize("name", WRITTEN)
def test_every_option_is_told_where_it_is_not_the_default(name: str) -> None:
    made = WRITTEN[name]
    assert type(made) is registry.named("method", name)
    assert list(options_told(repr(made))) == [field.name for field in fields(made)]  # type: ignore[arg-type]
    assert made != method(name)


def options_told(written: str) -> dict[str, Any]:
    """The options in how a method is written, by name"""
    told: dict[str, Any] = eval(f"dict{written[written.index('(') :]}", PLACES)
    return told


@over_methods
def test_a_meta_gradient_of_it_can_be_sent_to_another_process(name: str) -> None:
    problem, params, tasks = case("convolution")
    gradient = ms.MetaGradient(problem, method(name), ms.SGD(0.05), steps=4)
    again = pickle.loads(pickle.dumps(gradient))
    assert again.method == gradient.method
    assert repr(again) == repr(gradient)
    meta, found = gradient.init(params), []
    for each in (gradient, again):
        torch.manual_seed(1)
        found.append(each(meta, tasks).grad)
    assert relative_error(*found) == 0


exact_methods = pytest.mark.parametrize("name", [name for name in NAMES if name not in APPROXIMATE])
from_theta = pytest.mark.parametrize("problem", ["regression", "convolution"])


@exact_methods
@pytest.mark.parametrize("dynamics", ["momentum", "adam", "rmsprop"])
@from_theta
def test_exact_methods_equal_autograd_through_the_unroll(problem: str, dynamics: str, name: str) -> None:
    p, params, tasks = case(problem)
    gradient = ms.MetaGradient(p, method(name), DYNAMICS[dynamics], steps=STEPS)
    meta = gradient.init(params)
    found, expected = gradient(meta, tasks), by_autograd(gradient, meta, tasks)
    assert relative_error(found.grad, expected.grad) < 1e-9
    torch.testing.assert_close(found.metrics, expected.metrics, rtol=1e-12, atol=1e-12)


@exact_methods
@pytest.mark.parametrize("dynamics", ["momentum", "adam", "rmsprop"])
@from_theta
def test_exact_methods_equal_finite_differences(problem: str, dynamics: str, name: str) -> None:
    p, params, tasks = case(problem)
    task = first(tasks)
    gradient = ms.MetaGradient(p, method(name), DYNAMICS[dynamics], steps=STEPS)
    meta, h = gradient.init(params), 1e-6
    direction = normal_like(meta)
    with torch.no_grad():
        ahead, behind = (
            gradient.judge(map_tree(lambda m, d, s=s: m + s * d, meta, direction), [task]).loss for s in (h, -h)
        )
    along = dot(gradient(meta, [task]).grad, direction)
    torch.testing.assert_close(along, (ahead - behind) / (2 * h), rtol=1e-5, atol=1e-7)


@over_methods
@from_theta
def test_every_method_reports_the_loss_that_it_judges_by(problem: str, name: str) -> None:
    p, params, tasks = case(problem)
    gradient = ms.MetaGradient(p, method(name), ms.SGD(0.05, momentum=0.9), steps=STEPS)
    meta = gradient.init(params)
    found, judged = gradient(meta, tasks), gradient.judge(meta, tasks)
    assert torch.isfinite(torch.stack([norm(found.grad), found.loss])).all()
    torch.testing.assert_close(found.metrics, judged.metrics, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.loss, judged.loss, rtol=1e-12, atol=1e-12)
    assert judged.grad == ()


def phases(seed: int) -> ms.Task:
    """Sines of random phase: five points to adapt to, ten to be judged by"""
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(16, 15, 1, generator=generator) - 2
    y = torch.sin(x + 3 * torch.rand(16, 1, 1, generator=generator))
    return ms.Task((x[:, :5], y[:, :5]), (x[:, 5:], y[:, 5:]))


@over_methods
def test_every_method_learns(name: str) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    gradient = ms.MetaGradient(ms.few_shot(net, F.mse_loss), method(name), ms.SGD(0.05), steps=4)
    meta = gradient.init(net)
    step = ms.MetaStep(gradient, meta, torch.optim.Adam(ms.trees.leaves(meta), lr=1e-2))
    before = float(gradient.judge(meta, phases(1000)).loss)
    for k in range(80):
        step(phases(k))
    assert float(gradient.judge(meta, phases(1000)).loss) < 0.8 * before


# ---- first order and Reptile


@pytest.mark.parametrize("dynamics", DYNAMICS)
@from_theta
def test_first_order_is_the_outer_gradient_at_the_end(problem: str, dynamics: str) -> None:
    p, meta, tasks = case(problem)
    task = first(tasks)
    gradient = ms.MetaGradient(p, ms.FOMAML(window=2), DYNAMICS[dynamics], steps=STEPS)
    leaf = map_tree(lambda x: x.detach().requires_grad_(), gradient.adapt(meta, task))
    p.outer_loss(leaf, meta, task)[0].backward()
    assert relative_error(gradient.estimator(meta, task).grad, {name: x.grad for name, x in leaf.items()}) < 1e-12


def test_first_order_sees_only_the_direct_part_of_a_disjoint_theta() -> None:
    p, meta, tasks = case("example_weights")
    estimate = ms.MetaGradient(p, ms.FOMAML(), ms.SGD(0.1), steps=4).estimator(meta, first(tasks))
    torch.testing.assert_close(estimate.grad["weight"], 0.2 * meta["weight"] / 6)
    p, meta, tasks = case("meta_network")
    gradient = ms.MetaGradient(p, ms.FOMAML(), ms.SGD(0.1), steps=4)
    with pytest.warns(UserWarning, match="the meta-gradient is exactly 0"):
        assert float(norm(gradient(meta, tasks).grad)) == 0


def test_reptile_is_the_way_the_inner_loop_went() -> None:
    p, meta, tasks = case("regression")
    gradient, task = ms.MetaGradient(p, ms.Reptile(), DYNAMICS["adam"], steps=STEPS), first(tasks)
    assert relative_error(gradient.estimator(meta, task).grad, subtract(meta, gradient.adapt(meta, task))) < 1e-14


def test_reptile_and_first_order_under_proximal_regularisation(quadratic: Any) -> None:
    """At φ* of L + ½λ‖φ−θ‖², ∇L(φ*) = λ(θ−φ*): with outer = inner loss, first order is λ times Reptile."""
    p, meta, task = quadratic
    same = task._replace(query=task.support)
    strength, proximal = 2.0, ms.problems.proximal(p, 2.0)
    reptile, first_order = (
        ms.MetaGradient(proximal, each, ms.SGD(0.3), steps=300).estimator for each in (ms.Reptile(), ms.FOMAML())
    )
    assert relative_error(scale(strength, reptile(meta, same).grad), first_order(meta, same).grad) < 1e-10
    assert relative_error(scale(strength, reptile(meta, task).grad), first_order(meta, task).grad) > 1e-2


# ---- implicit


def closed_form(meta: Tree, task: Any, strength: float) -> torch.Tensor:
    return pulled_back(task, solution(meta, task, strength), strength)


def solution(meta: Tree, task: Any, strength: float) -> torch.Tensor:
    """argmin L(φ) + ½λ‖φ − θ‖²"""
    x, y = task.support
    hessian, eye = x.T @ x / len(y), torch.eye(4, dtype=F64)
    return torch.linalg.solve(hessian + strength * eye, x.T @ y / len(y) + strength * meta["w"])


def pulled_back(task: Any, params: torch.Tensor, strength: float) -> torch.Tensor:
    """(I + H/λ)⁻¹ ∇L(φ)"""
    (x, y), (xq, yq) = task
    outer = xq.T @ (xq @ params - yq) / len(yq)
    return torch.linalg.solve(torch.eye(4, dtype=F64) + x.T @ x / len(y) / strength, outer)


@pytest.mark.parametrize("solver", [CG(4), ms.solvers.Neumann(400, 0.25)], ids=["cg", "neumann"])
def test_imaml_equals_its_closed_form(quadratic: Any, solver: Any) -> None:
    p, meta, task = quadratic
    method = ms.IMAML(strength=2.0, solver=solver)
    estimate = ms.MetaGradient(p, method, ms.SGD(0.2), steps=200).estimator(meta, task)
    assert relative_error(estimate.grad["w"], closed_form(meta, task, 2.0)) < 1e-9


def test_imaml_with_a_free_inner_loop_is_damped_where_that_ends(quadratic: Any) -> None:
    p, meta, task = quadratic
    method = ms.IMAML(strength=2.0, solver=CG(4), free=True)
    estimate = ms.MetaGradient(p, method, ms.SGD(0.2), steps=3).estimator(meta, task)
    (x, y), params = task.support, meta["w"]
    for _ in range(3):
        params = params - 0.2 * x.T @ (x @ params - y) / len(y)
    assert relative_error(estimate.grad["w"], pulled_back(task, params, 2.0)) < 1e-9


@pytest.mark.parametrize("free", [False, True])
def test_imaml_at_a_solution_that_is_given(quadratic: Any, free: bool) -> None:
    """It is differentiated where it is, and no inner step is made"""
    p, meta, task = quadratic
    gradient = ms.MetaGradient(p, ms.IMAML(strength=2.0, solver=CG(4), free=free), ms.SGD(0.2), steps=200)
    params = {"w": solution(meta, task, 2.0)}
    estimate = gradient.at(meta, task, params)
    assert relative_error(estimate.grad["w"], closed_form(meta, task, 2.0)) < 1e-12
    torch.testing.assert_close(estimate.loss, p.outer_loss(params, meta, task))
    at_the_end = gradient.at(meta, task, gradient.adapt(meta, task))
    assert relative_error(at_the_end.grad, gradient.estimator(meta, task).grad) < 1e-12


@pytest.mark.parametrize("name", [name for name in NAMES if name != "imaml"])
def test_only_implicit_methods_take_a_solution(name: str) -> None:
    p, params, tasks = case("regression")
    gradient = ms.MetaGradient(p, method(name), ms.SGD(0.1), steps=STEPS)
    with pytest.raises(ms.MetastepError, match=r"needs them\. Use ms\.IMAML"):
        gradient.at(gradient.init(params), first(tasks), params)


def test_imaml_equals_the_unrolled_gradient_of_a_converged_proximal_problem() -> None:
    p, meta, tasks = case("regression")
    proximal = ms.problems.proximal(p, 2.0)
    for window in (1, 2):
        unrolled = ms.MetaGradient(proximal, ms.MultiStep(window), ms.SGD(0.1), steps=240)(meta, tasks)
        method = ms.IMAML(strength=2.0, solver=CG(40), window=window)
        implicit = ms.MetaGradient(p, method, ms.SGD(0.1), steps=240)(meta, tasks)
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
    loop = inner_loop(problem, ms.SGD(0.1), 200)
    task, meta = ms.Task((x, y), (xq, yq)), randn(3, scale=0.3)
    implicit = ms.estimators.implicit(loop, CG(3))(meta, task)
    assert relative_error(implicit.grad, ms.estimators.unrolled(loop)(meta, task).grad) < 1e-9


SOLVERS: dict[str, ms.solvers.Solver] = {"neumann": ms.solvers.Neumann(steps=200, rate=0.3)}


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("name", registry.names("solver"))
def test_every_solver_solves(name: str, warm: bool) -> None:
    solver = SOLVERS[name] if name in SOLVERS else registry.named("solver", name)()
    torch.manual_seed(0)
    root, b = randn(4, 4, scale=0.5), randn(4)
    h = root.T @ root + torch.eye(4, dtype=F64)
    found = solver(lambda v: h @ v, b, start=randn(4)) if warm else solver(lambda v: h @ v, b)
    assert relative_error(found, torch.linalg.solve(h, b)) < 1e-9
    assert pickle.loads(pickle.dumps(solver)) == solver == eval(repr(solver), PLACES)


def test_a_solved_system_stays_solved() -> None:
    b = torch.tensor([1.0, 2.0], dtype=F64)
    torch.testing.assert_close(CG(50)(lambda v: 2 * v, b), b / 2)
    assert bool(CG(3)(lambda v: v, torch.zeros(2, dtype=F64)).isfinite().all())


@pytest.mark.parametrize("size", [1.0, 1e-8, 1e-12, 1e-16, 1e-20])
@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-2, 0.3])
def test_a_system_is_solved_where_its_residual_is_too_small_to_be_squared(size: float, spread: float) -> None:
    h, b = 24 * (1 + spread * torch.linspace(-1, 1, 7)), torch.full((7,), size)
    x = CG(9)(lambda v: h * v, b)
    assert (x * h / b - 1).abs().max() < (1e-5 if size > 1e-18 else 1e-2)  # float32, and the last is 1e-40 when squared


@pytest.mark.parametrize(
    ("bends", "steps"), [((3.0, 2.0, 1.0), 3), ((9.0, 3.0, -1.0), 2), ((4.0, 1.0, -2.0), 1), ((1.0, -3.0, -2.0), 0)]
)
def test_conjugate_gradients_stop_where_the_matrix_bends_down(bends: tuple[float, ...], steps: int) -> None:
    """As far as each step has a minimum along it: x is that of a solver with so many steps"""
    h, b = torch.tensor(bends, dtype=F64), torch.ones(3, dtype=F64)
    found = CG(5)(lambda v: h * v, b)
    best = torch.zeros(3, dtype=F64)  # of the Krylov space: ½xᵀHx − bᵀx is least
    if steps:
        space = torch.stack([h**k * b for k in range(steps)], 1)
        best = space @ torch.linalg.solve(space.T @ (h[:, None] * space), space.T @ b)
    torch.testing.assert_close(found, best)


# ---- curvature

# How each is told to be precise, how far it then is from `exact`, and on which problems; "exact" itself has no row.
PRECISE: dict[str, tuple[ms.curvature.Curvature, float, Collection[str]]] = {
    "exact_forward": (ms.curvature.exact_forward, 1e-12, PROBLEMS),
    "central_difference": (ms.curvature.CentralDifference(1e-4), 1e-6, PROBLEMS),
    "gaussian_smoothing": (ms.curvature.GaussianSmoothing(1024, sigma=1e-3), 0.35, {"regression", "meta_network"}),
    "zeroth_order": (ms.curvature.ZerothOrder(2048, sigma=1e-2), 0.7, {"regression"}),
}


def window_of(problem: ms.Problem, task: Any) -> Window:
    return problem.windows(task, [1])[0]


@pytest.mark.parametrize("name", [name for name in registry.names("curvature") if name != "exact"])
def test_every_curvature_approaches_the_exact_one(name: str) -> None:
    curvature, tolerance, problems = PRECISE[name]
    for problem in problems:
        assert product_error(problem, curvature) < tolerance
    assert pickle.loads(pickle.dumps(curvature)) == curvature


def test_hf_maml_is_exact_on_quadratics(quadratic: Any) -> None:
    p, meta, task = quadratic
    for dynamics in (ms.SGD(0.1), DYNAMICS["momentum"], DYNAMICS["nesterov"]):
        exact, differences = (
            ms.MetaGradient(p, each, dynamics, steps=5).estimator(meta, task).grad
            for each in (ms.MAML(), ms.methods.HFMAML(delta=0.1))
        )
        assert relative_error(differences, exact) < 1e-9


def test_a_zero_direction_gives_a_zero_product(quadratic: Any) -> None:
    p, meta, task = quadratic
    still = map_tree(torch.zeros_like, meta)
    h, c = ms.curvature.CentralDifference()(window_of(p, task), meta, meta, still)
    assert float(norm(h)) == float(norm(c)) == 0


@pytest.mark.parametrize("problem", ["regression", "meta_network"])
def test_gaussian_smoothing_converges(problem: str) -> None:
    """The error falls like 1/√samples: sixteen times the samples, a quarter of it"""
    errors = [product_error(problem, ms.curvature.GaussianSmoothing(samples, sigma=1e-3)) for samples in (64, 1024)]
    assert errors[1] < 0.5 * errors[0]
    assert errors[1] < 0.35


def test_zeroth_order_converges() -> None:
    errors = [product_error("regression", ms.curvature.ZerothOrder(samples, sigma=1e-2)) for samples in (128, 2048)]
    assert errors[1] < 0.5 * errors[0]


def product_error(problem: str, curvature: ms.curvature.Curvature) -> float:
    p, meta, tasks = case(problem)
    task = first(tasks)
    params = p.start(meta, task)
    direction = map_tree(torch.cos, params)
    with torch.no_grad():
        exact = ms.curvature.exact(window_of(p, task), params, meta, direction)
        estimate = curvature(window_of(p, task), params, meta, direction)
    return relative_error(estimate, exact)


# ---- truncation, ANIL, learned rates, MAML++


def test_truncation_equals_a_sweep_from_where_it_stops(quadratic: Any) -> None:
    p, meta, task = quadratic
    sgd = ms.SGD(0.1)
    middle = ms.MetaGradient(p, ms.MAML(), sgd, steps=3).adapt(meta, task)
    late = ms.MetaGradient(p, ms.methods.Truncated(depth=5), sgd, steps=8).estimator(meta, task)
    assert relative_error(late.grad, ms.MetaGradient(p, ms.MAML(), sgd, steps=5).estimator(middle, task).grad) < 1e-12


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("dynamics", ["momentum", "adam"])
def test_anil_adapts_the_head_alone_and_learns_all(dynamics: str, window: int) -> None:
    p, meta, tasks = case("convolution")
    method = ms.methods.ANIL(head="4.", window=window)
    gradient = ms.MetaGradient(p, method, DYNAMICS[dynamics], steps=STEPS)
    assert set(gradient.adapt(meta, first(tasks))) == {"4.weight", "4.bias"}
    estimate = gradient(meta, tasks)
    assert relative_error(estimate.grad, by_autograd(gradient, meta, tasks).grad) < 1e-9

    # The same by hand: body rates of 0 in an inner loop over everything
    held = {name: (0.1 if is_head(name) else 0.0) for name in meta}
    by_rates = ms.MetaGradient(p, ms.MultiStep(window), ms.SGD(held), steps=STEPS)(meta, tasks)
    for head in ("4.", is_head):
        method = ms.methods.ANIL(head=head, window=window)
        anil = ms.MetaGradient(p, method, ms.SGD(0.1), steps=STEPS)(meta, tasks)
        assert relative_error(anil.grad, by_rates.grad) < 1e-9


@pytest.mark.parametrize("window", [1, 2, 8])
@pytest.mark.parametrize("dynamics", ["sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop"])
def test_meta_sgd_learns_a_rate_for_every_entry(dynamics: str, window: int) -> None:
    p, params, tasks = case("regression")
    inner = replace(DYNAMICS[dynamics], lr=0.02)  # type: ignore[type-var]
    gradient = ms.MetaGradient(p, ms.MetaSGD(window=window), inner, steps=STEPS)
    meta = gradient.init(params)
    assert map_tree(torch.Tensor.unique, meta["rates"]) == dict.fromkeys(params, 0.02)
    estimate = gradient(meta, tasks)
    assert relative_error(estimate.grad, by_autograd(gradient, meta, tasks).grad) < 1e-9
    assert float(norm(estimate.grad["rates"])) > 0

    constant = ms.MetaGradient(p, ms.MultiStep(window), inner, steps=STEPS)(params, tasks)
    assert relative_error(estimate.grad["params"], constant.grad) < 1e-9


def test_learned_rates_agree_with_finite_differences() -> None:
    p, params, tasks = case("regression")
    task = first(tasks)
    gradient, lr = (
        ms.MetaGradient(p, ms.MetaSGD(window=4), DYNAMICS["momentum"], steps=8),
        ms.problems.with_rates(params, 0.02),
    )
    h = 1e-6
    ahead, behind = (
        gradient.estimator({**lr, "rates": map_tree(lambda r, s=s: r + s, lr["rates"])}, task).loss for s in (h, -h)
    )
    total = sum(g.sum() for g in gradient.estimator(lr, task).grad["rates"].values())
    torch.testing.assert_close(total, (ahead - behind) / (2 * h), rtol=1e-6, atol=1e-8)


def test_learned_rates_combine_with_anil() -> None:
    p, params, tasks = case("convolution")
    head_only = ms.problems.adapt_only(p, is_head)
    meta = ms.problems.with_rates(params, 0.1, head=is_head)
    gradient = ms.MetaGradient(head_only, ms.MetaSGD(window=4), ms.SGD(0.1, momentum=0.9), steps=STEPS)
    estimate = gradient(meta, tasks)
    assert relative_error(estimate.grad, by_autograd(gradient, meta, tasks).grad) < 1e-9
    assert set(estimate.grad["rates"]) == {"4.weight", "4.bias"}


@pytest.mark.parametrize("weights", [None, [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.0, 1.0]])
def test_maml_pp_weighs_the_loss_after_every_window(weights: list[float] | None) -> None:
    p, params, tasks = case("regression")
    sgd = ms.SGD(0.02, momentum=0.9)
    gradient = ms.MetaGradient(p, ms.methods.MAMLPP(weights, window=2), sgd, steps=STEPS)
    meta = gradient.init(params)
    estimate = gradient(meta, tasks)
    reference = mapped(ms.methods.Reference(weights=weights or [0.25] * 4), gradient.loop, None)(meta, tasks)
    assert relative_error(estimate.grad, reference.grad) < 1e-9
    torch.testing.assert_close(estimate.loss, reference.loss)
    assert all(rate.shape == (STEPS,) for rate in estimate.grad["rates"].values())
    if weights == [0.0, 0.0, 0.0, 1.0]:
        last = ms.MetaGradient(p, ms.MultiStep(2), sgd, steps=STEPS)(params, tasks)
        assert relative_error(estimate.grad["params"], last.grad) < 1e-9


def test_weights_combine_with_recomputed_segments() -> None:
    p, meta, tasks = case("convolution")
    weights = (0.1, 0.2, 0.3, 0.4)
    found, expected = (
        ms.MetaGradient(p, method, DYNAMICS["adam"], steps=STEPS)(meta, tasks).grad
        for method in (Swept(window=2, weights=weights), ms.methods.Reference(window=2, weights=weights))
    )
    assert relative_error(found, expected) < 1e-9
