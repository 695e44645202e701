"""Inner loops that are continued, solutions that the user brings, and the adapted net as a module."""

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import metastep as ms
from metastep.core import registry
from metastep.core.trees import Tree, map_tree, scale
from metastep.errors import MetastepError, NonFiniteError
from tests.core.helpers import DYNAMICS, PROBLEMS, case, method, relative_error
from tests.step.helpers import each, gradient_of, some_tasks, tanh_net

TASKS = some_tasks()
INNER = {
    "sgd": ms.SGD(0.1),
    "momentum": ms.SGD(0.1, momentum=0.9),
    "adam": ms.Adam(0.05),
    "rmsprop": ms.RMSprop(0.05, momentum=0.5),
    "scheduled": ms.SGD(lr=lambda meta, step: 0.1 * 0.5**step),
    "own": DYNAMICS["own"],
}
METHODS = [name for name in registry.names("method") if name not in ("maml_pp", "sparse_maml")]


def steps(net: nn.Module, name: str, inner: str, number: int) -> ms.MetaGradient:
    made = ms.methods.ANIL(head="2.") if name == "anil" else method(name)
    problem = ms.few_shot(net, F.mse_loss)
    return ms.MetaGradient(problem, made, INNER[inner], steps=number)


@pytest.mark.filterwarnings("ignore:the meta-gradient is exactly 0")  # from a given start, θ acts through nothing
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("name", METHODS)
def test_two_loops_of_twelve_steps_are_one_of_24(name: str, inner: str) -> None:
    """With φ alone kept, the loop begins anew from there; with its state, nothing shows that it was interrupted"""
    if name == "meta_sgd" and inner in ("scheduled", "own"):
        pytest.skip("Meta-SGD learns a rate that is a number")
    net = tanh_net()
    half, whole = steps(net, name, inner, 12), steps(net, name, inner, 24)
    meta = half.init(net)
    first = half(meta, TASKS, keep="state")
    second = half(meta, TASKS, keep="state", start=first.state)
    expected = whole(meta, TASKS, keep="params")
    assert relative_error(second.state.params, expected.state) < 1e-12
    torch.testing.assert_close(second.metrics["loss"], expected.metrics["loss"])
    assert relative_error(half(meta, TASKS, keep="params").state, first.state.params) < 1e-14
    torch.testing.assert_close(half.judge(meta, TASKS, start=first.state).loss, second.loss)
    torch.testing.assert_close(half.loss(meta, TASKS, start=first.state).detach(), second.loss)
    for i, task in enumerate(each(TASKS)):
        assert relative_error(map_tree(lambda x, i=i: x[i], first.state.params), half.adapt(meta, task)) < 1e-12


def test_maml_pp_continues_while_it_has_rates() -> None:
    net = tanh_net()
    problem = ms.few_shot(net, F.mse_loss)
    half, whole = (ms.MetaGradient(problem, ms.methods.MAMLPP(), ms.SGD(0.1), steps=n) for n in (2, 4))
    meta = whole.init(net)
    first = half(meta, TASKS, keep="state")
    found, expected = half(meta, TASKS, keep="params", start=first.state), whole(meta, TASKS, keep="params")
    assert relative_error(found.state, expected.state) < 1e-12
    with pytest.raises(MetastepError, match="each inner step needs one"):
        half(half.init(net), TASKS, start=first.state)


@pytest.mark.parametrize("name", PROBLEMS)
def test_theta_acts_through_the_losses_alone_from_a_given_start(name: str) -> None:
    """Against autograd through the unroll from there"""
    problem, meta, tasks = case(name)
    gradient = ms.MetaGradient(problem, ms.MultiStep(window=2), ms.SGD(0.1), steps=4)
    start = gradient(meta, tasks, keep="params").state
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = gradient(meta, tasks, start=start)
    number = len(found.metrics["loss"])
    learned = map_tree(lambda x: x.detach().clone().requires_grad_(), meta)
    losses = []
    for i in range(number):
        task, params = (map_tree(lambda x, i=i: x[i], tree) for tree in (tasks, start))
        params = map_tree(lambda x: x.detach().requires_grad_(), params)
        for window in problem.windows(task, [2, 2]):
            leaves = ms.trees.leaves(params)
            grads = torch.autograd.grad(window.loss(params, learned, window.batch), leaves, create_graph=True)
            moved = iter([p - window.steps * 0.1 * g for p, g in zip(leaves, grads, strict=True)])
            params = map_tree(lambda x, moved=moved: next(moved), params)
        loss = problem.outer_loss(params, learned, task)
        losses.append(loss[0] if isinstance(loss, tuple) else loss)
    leaves = ms.trees.leaves(learned)
    if name in ("regression", "convolution"):
        assert not any(bool(g.any()) for g in ms.trees.leaves(found.grad))
        assert "the meta-gradient is exactly 0" in str(told[0].message)
        return
    wanted = torch.autograd.grad(torch.stack(losses).mean(), leaves, materialize_grads=True)
    assert relative_error(ms.trees.leaves(found.grad), list(wanted)) < 1e-12


@pytest.mark.filterwarnings("ignore:the meta-gradient is exactly 0")
@pytest.mark.parametrize("chunk_size", [1, 2, 3])
def test_states_are_those_of_all_tasks_however_they_are_computed(chunk_size: int) -> None:
    net = tanh_net()
    gradient = ms.MetaGradient(ms.few_shot(net, F.mse_loss), ms.MAML(), ms.Adam(0.05), steps=2)
    parted = ms.MetaGradient(gradient.problem, ms.MAML(), ms.Adam(0.05), steps=2, chunk_size=chunk_size)
    ours, theirs = parted(net, TASKS, keep="state").state, gradient(net, TASKS, keep="state").state
    assert relative_error(ours[:2], theirs[:2]) < 1e-14
    assert ours.step == theirs.step == 2
    found = parted(net, each(TASKS), keep="params", start=ours)
    assert relative_error(found.state, gradient(net, TASKS, keep="params", start=theirs).state) < 1e-12


@pytest.mark.filterwarnings("ignore:the meta-gradient is exactly 0")
def test_tasks_of_different_shapes_keep_a_list() -> None:
    net = tanh_net()
    gradient = ms.MetaGradient(ms.few_shot(net, F.mse_loss), ms.MAML(), ms.Adam(0.05), steps=2)
    whole = ms.MetaGradient(gradient.problem, ms.MAML(), ms.Adam(0.05), steps=4)
    tasks = [
        ms.Task(map_tree(lambda x, i=i: x[: i + 2], task.support), task.query) for i, task in enumerate(each(TASKS))
    ]
    kept = gradient(net, tasks, keep="state").state
    found, expected = gradient(net, tasks, keep="params", start=kept), whole(net, tasks, keep="params")
    assert relative_error(found.state, expected.state) < 1e-12
    with pytest.raises(MetastepError, match="start has 4 entries for 5 tasks"):
        gradient(net, tasks, start=kept[:4])


WRONG: dict[str, tuple[Any, str]] = {
    "a module": (tanh_net(), "start must hold φ of each of the 5 tasks.*has a Sequential in it"),
    "one φ": (ms.parameters(tanh_net()), r"has \(3, 2\) in it\. Give what keep= returned for as many tasks"),
    "three": (map_tree(lambda p: p.expand(3, *p.shape), ms.parameters(tanh_net())), r"has \(3, 3, 2\) in it"),
    "another": (
        gradient_of(tanh_net())(tanh_net(), TASKS, keep="state").state,
        "kept by SGD, and Adam cannot continue",
    ),
    "other names": ({"w": torch.ones(5, 2)}, "has no parameter or buffer 'w'"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_start_that_is_none_is_refused(kind: str) -> None:
    net, (start, message) = tanh_net(), WRONG[kind]
    gradient = ms.MetaGradient(ms.few_shot(net, F.mse_loss), ms.MAML(), ms.Adam(0.05), steps=2)
    for call in (gradient, gradient.loss, gradient.judge):
        with pytest.raises(MetastepError, match=message):
            call(net, TASKS, start=start)


def test_what_keep_may_be() -> None:
    net = tanh_net()
    assert gradient_of(net)(net, TASKS).state is None
    with pytest.raises(MetastepError, match='keep = \'all\' must be "params", "state" or None'):
        gradient_of(net)(net, TASKS, keep="all")  # type: ignore[arg-type]


# Ridge regression: φ and the derivative by θ, the logarithm of the penalty of each weight, are known in closed form.
def ridge_loss(params: Tree, meta: Tensor, batch: Any) -> Tensor:
    x, y = batch
    return (x @ params["w"] - y).square().mean() + (meta.exp() * params["w"].square()).sum()


def clean_loss(params: Tree, meta: Tensor, task: Any) -> tuple[Tensor, dict[str, Tensor]]:
    x, y = task.query
    return (x @ params["w"] - y).square().mean(), {"norm": params["w"].norm()}


def ridge() -> tuple[ms.Problem, ms.Task, Tensor]:
    drawn = torch.Generator().manual_seed(0)
    x, y, x2, y2 = (torch.randn(*n, dtype=torch.float64, generator=drawn) for n in ((4, 10, 3), (4, 10)) * 2)
    zeros = torch.zeros(3, dtype=torch.float64)
    problem = ms.Problem(lambda meta, task: {"w": zeros}, ms.every_window(ridge_loss), clean_loss)
    return problem, ms.Task((x, y), (x2, y2)), torch.full((3,), -2.0, dtype=torch.float64)


def solutions(tasks: ms.Task, decay: Tensor) -> Tensor:
    x, y = tasks.support
    matrix = x.mT @ x / x.shape[1] + decay.exp().diag()
    return torch.linalg.solve(matrix, (x.mT @ y[..., None])[..., 0] / x.shape[1])


def ridge_by_hand(tasks: ms.Task, decay: Tensor) -> tuple[Tensor, Tensor]:
    decay = decay.clone().requires_grad_()
    (x, y), w = tasks.query, solutions(tasks, decay)
    loss = ((x @ w[..., None])[..., 0] - y).square().mean()
    return loss.detach(), torch.autograd.grad(loss, decay)[0]


def implicit(solver: ms.solvers.Solver, steps: int = 1) -> tuple[ms.MetaGradient, ms.Task, Tensor]:
    problem, tasks, decay = ridge()
    made = ms.IMAML(strength=1e-9, free=True, solver=solver)
    return ms.MetaGradient(problem, made, ms.SGD(0.1), steps=steps), tasks, decay


def test_at_a_solution_that_the_user_brings() -> None:
    gradient, tasks, decay = implicit(ms.solvers.ConjugateGradient(steps=10))
    found = [gradient.at(decay, task, {"w": w}) for task, w in zip(each(tasks), solutions(tasks, decay), strict=True)]
    loss, wanted = ridge_by_hand(tasks, decay)
    torch.testing.assert_close(torch.stack([one.loss for one in found]).mean(), loss)
    assert relative_error(torch.stack([one.grad for one in found]).mean(0), wanted) < 1e-8
    assert found[0].metrics.keys() == {"loss", "norm"}
    assert found[0].metrics["norm"].shape == found[0].metrics["loss"].shape == (1,)
    assert found[0].state is None


def test_at_the_end_of_the_inner_loop_it_is_the_call() -> None:
    net = tanh_net()
    gradient, task = gradient_of(net, ms.IMAML(strength=2.0)), each(TASKS)[0]
    whole = gradient(net, [task], keep="params")
    phi = map_tree(lambda x: x[0], whole.state)
    for params in (phi, ms.as_module(net, phi)):
        assert relative_error(gradient.at(net, task, params).grad, whole.grad) < 1e-12


@pytest.mark.parametrize(
    "solver",
    [ms.solvers.ConjugateGradient(steps=1), ms.solvers.Neumann(steps=2, rate=0.2)],
    ids=["conjugate gradients", "Neumann"],
)
def test_an_online_bilevel_method_continues_phi_and_the_linear_solution(solver: ms.solvers.Solver) -> None:
    """One inner step and a little of the solver a call: with both kept, the calls reach the true gradient"""
    gradient, tasks, decay = implicit(solver)
    wanted, state = ridge_by_hand(tasks, decay)[1], None
    for _ in range(150):
        found = gradient(decay, tasks, keep="state", start=state)
        state = found.state
    assert relative_error(state.params["w"], solutions(tasks, decay)) < 1e-3
    assert relative_error(found.grad, wanted) < 1e-3
    assert state.step == 150
    without = gradient(decay, tasks, start=state.params)  # φ alone is kept
    assert relative_error(without.grad, wanted) > 0.1


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"w": torch.zeros(4, 3).double()}, r"of one task, are not alike: 'w' is \(3,\) in the first and \(4, 3\)"),
        ({"v": torch.zeros(3).double()}, "only in the first: 'w'; only in the second: 'v'"),
    ],
)
def test_at_refuses_what_is_not_phi_of_one_task(params: Tree, message: str) -> None:
    gradient, tasks, decay = implicit(ms.solvers.ConjugateGradient(steps=2))
    with pytest.raises(MetastepError, match=message):
        gradient.at(decay, each(tasks)[0], params)


def test_at_is_for_implicit_methods_and_finite_solutions() -> None:
    gradient, tasks, decay = implicit(ms.solvers.ConjugateGradient(steps=2))
    with pytest.raises(NonFiniteError, match="at these params is not finite; the outer loss there is nan"):
        gradient.at(decay, each(tasks)[0], {"w": torch.full((3,), torch.nan, dtype=torch.float64)})
    net = tanh_net()
    with pytest.raises(MetastepError, match=r"MultiStep\(window=2\) differentiates the steps.*Use ms\.IMAML"):
        gradient_of(net).at(net, each(TASKS)[0], net)


def test_the_adapted_net_is_a_module() -> None:
    net, x = tanh_net(), TASKS.query[0][0]
    phi = gradient_of(net).adapt(net, each(TASKS)[0])
    model = ms.as_module(net, phi)
    torch.testing.assert_close(model(x), ms.apply(net, phi, x))
    assert type(model) is nn.Sequential
    assert model.state_dict().keys() == net.state_dict().keys()
    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(exported(x), model(x))
    other = tanh_net(1)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(x), model(x))
    model(x).sum().backward()  # φ are its parameters, to be trained further
    assert all(p.requires_grad and p.grad is not None for p in model.parameters())
    assert all(p.grad is None for p in net.parameters())


class Parts(nn.Module):
    """Tied weights, a frozen parameter, and a buffer"""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.shift = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.second(self.first(x)) + self.shift


def test_all_that_a_module_holds_is_kept() -> None:
    net, eye = Parts(), torch.eye(2)
    model = ms.as_module(net, {"first.weight": 2 * eye, "scale": torch.full((2,), 3.0)})
    assert model.first.weight is model.second.weight
    torch.testing.assert_close(model(eye), 12 * eye + 1)
    assert not model.shift.requires_grad
    assert not torch.equal(net.first.weight, model.first.weight)
    torch.testing.assert_close(ms.as_module(net, model.state_dict())(eye), model(eye))


@pytest.mark.parametrize("name", ["anil", "meta_sgd", "imaml"])
def test_phi_of_other_methods_makes_a_module_too(name: str) -> None:
    net, x = tanh_net(), TASKS.query[0][0]
    gradient = steps(net, name, "sgd", 2)
    phi = gradient.adapt(gradient.init(net), each(TASKS)[0])
    torch.testing.assert_close(ms.as_module(net, phi)(x), ms.apply(net, phi, x))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"a": torch.ones(2)}, r"params has 'a' \(2,\), which Parts cannot hold: it has none of that name"),
        ({"first.weight": torch.ones(5, 2, 2)}, r"its own is \(2, 2\)"),
        ([torch.ones(2)], "params is a list. Give tensors by name"),
    ],
)
def test_what_a_module_cannot_hold_is_refused(params: Any, message: str) -> None:
    with pytest.raises(MetastepError, match=message):
        ms.as_module(Parts(), params)


def test_init_makes_a_theta_that_is_learned() -> None:
    net = tanh_net()
    assert all(leaf is p for leaf, p in zip(gradient_of(net).init(net).values(), net.parameters(), strict=True))
    constants = {name: p.detach() for name, p in net.named_parameters()}
    made = gradient_of(net).init(constants)
    assert all(leaf.requires_grad for leaf in made.values())
    assert not any(leaf.requires_grad for leaf in constants.values())
    some = {name: p if name == "0.bias" else p.detach() for name, p in net.named_parameters()}
    assert [leaf.requires_grad for leaf in gradient_of(net).init(some).values()] == [False, True, False, False]
    rates = gradient_of(net, ms.MetaSGD()).init(constants)
    assert all(leaf.requires_grad for leaf in ms.trees.leaves(rates))
    assert relative_error(rates["rates"], scale(0.1, map_tree(torch.ones_like, constants))) < 1e-7
