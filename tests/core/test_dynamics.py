"""Every dynamics is its torch.optim original, and a window is that many steps with one gradient."""

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import metastep as ms
from metastep.core.torch_originals import ours
from metastep.core.trees import map_tree, tree_leaves
from metastep.core.windows import InnerLoop
from tests.core.helpers import DYNAMICS, OWN, randn, relative_error

Params = dict[str, torch.Tensor]

ORIGINALS: dict[str, Callable[[list[Any]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-2),
    "dampened": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.3, weight_decay=1e-2),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam": lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, momentum=0.5, weight_decay=1e-2),
    "rmsprop plain": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


def parameters() -> Params:
    torch.manual_seed(0)
    return {"w": torch.nn.Parameter(randn(3, 2)), "b": torch.nn.Parameter(randn(2))}


def gradient(params: Params, t: int) -> Params:
    return map_tree(lambda p: torch.sin(3 * p.detach() + t), params)


def real_steps(optimizer: torch.optim.Optimizer, params: Params, times: range) -> None:
    for t in times:
        for name, g in gradient(params, t).items():
            params[name].grad = g
        optimizer.step()


@pytest.mark.parametrize("real", [0, 7], ids=["fresh", "after 7 real steps"])
@pytest.mark.parametrize("name", ORIGINALS)
def test_equals_torch_optim_over_50_steps(name: str, real: int) -> None:
    params = parameters()
    optimizer = ORIGINALS[name](list(params.values()))
    real_steps(optimizer, params, range(real))
    dynamics, state = ours(optimizer, params)
    if name in DYNAMICS:
        assert dynamics == DYNAMICS[name]
    real_steps(optimizer, params, range(real, real + 50))
    for t in range(real, real + 50):
        state = dynamics.advance(state, gradient(state.params, t), None, 1)
    assert relative_error(state.params, map_tree(torch.Tensor.detach, params)) < 1e-12


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_state_goes_back_into_the_optimizer(name: str) -> None:
    straight, there_and_back = parameters(), parameters()
    one, other = ORIGINALS[name](list(straight.values())), ORIGINALS[name](list(there_and_back.values()))
    real_steps(one, straight, range(9))
    real_steps(other, there_and_back, range(3))
    dynamics, state = ours(other, there_and_back)
    for t in range(3, 6):
        state = dynamics.advance(state, gradient(state.params, t), None, 1)
    ms.optimizers.to_torch(state, other, there_and_back)
    real_steps(other, there_and_back, range(6, 9))
    for key in straight:
        torch.testing.assert_close(straight[key], there_and_back[key], rtol=1e-12, atol=1e-12)


def test_parameter_groups_become_a_tree_of_rates() -> None:
    params = parameters()
    groups = [{"params": [params["w"]], "lr": 0.1}, {"params": [params["b"]], "lr": 0.3, "weight_decay": 0.1}]
    optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.9)
    real_steps(optimizer, params, range(2))
    dynamics, state = ours(optimizer, params)
    assert isinstance(dynamics, ms.SGD)
    assert dynamics.lr == {"w": 0.1, "b": 0.3}
    assert dynamics.momentum == 0.9
    real_steps(optimizer, params, range(2, 9))
    for t in range(2, 9):
        state = dynamics.advance(state, gradient(state.params, t), None, 1)
    assert relative_error(state.params, map_tree(torch.Tensor.detach, params)) < 1e-12


@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "warm"])
@pytest.mark.parametrize("steps", [1, 2, 3, 8])
@pytest.mark.parametrize("name", DYNAMICS)
def test_a_window_is_single_steps_that_share_a_gradient(name: str, steps: int, warm: bool) -> None:
    dynamics, params = DYNAMICS[name], map_tree(torch.Tensor.detach, parameters())
    state, g = dynamics.init(params), gradient(params, 0)
    if warm:
        state = dynamics.advance(state, gradient(params, 5), None, 1)
    at_once, singly = dynamics.advance(state, g, None, steps), state
    for _ in range(steps):
        singly = dynamics.advance(singly, g, None, 1)
    assert at_once.step == singly.step == steps + warm
    assert relative_error((at_once.params, at_once.memory), (singly.params, singly.memory)) < 1e-13


class CountOperations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["sgd", "momentum", "dampened", "nesterov", "scheduled"])
def test_closed_form_costs_the_same_for_any_window(name: str) -> None:
    params = map_tree(torch.Tensor.detach, parameters())
    costs = []
    for steps in (1, 8, 64):
        with CountOperations() as operations:
            DYNAMICS[name].advance(DYNAMICS[name].init(params), gradient(params, 0), None, steps)
        costs.append(operations.count)
    assert costs[1] == costs[2] <= costs[0] + 4  # one step alone leaves out products with 1


RATES: dict[str, tuple[Any, Any]] = {
    "tree of numbers": ({"w": 0.1, "b": 0.2}, None),
    "tree of tensors": (
        {"w": torch.full((3, 2), 0.1, dtype=torch.float64), "b": torch.tensor(0.2, dtype=torch.float64)},
        None,
    ),
    "from theta": (
        lambda meta, step: meta,
        {"w": torch.full((3, 2), 0.1, dtype=torch.float64), "b": torch.tensor(0.2, dtype=torch.float64)},
    ),
    "schedule of trees": (lambda meta, step: {"w": 0.1, "b": 0.2}, None),
}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("kind", ["sgd", "adam", "rmsprop"])
def test_rates_of_any_form_agree(kind: str, rate: str) -> None:
    def build(lr: Any) -> ms.optimizers.InnerOptimizer:
        return {
            "sgd": ms.SGD(lr, momentum=0.9, weight_decay=0.01), "adam": ms.Adam(lr), "rmsprop": ms.RMSprop(lr)
        }[kind]  # fmt: skip

    params = map_tree(torch.Tensor.detach, parameters())
    lr, meta = RATES[rate]
    reference, dynamics = build({"w": 0.1, "b": 0.2}), build(lr)
    a, b = reference.init(params), dynamics.init(params)
    for t in range(3):
        a = reference.advance(a, gradient(params, t), None, 2)
        b = dynamics.advance(b, gradient(params, t), meta, 2)
    assert relative_error(a.params, b.params) < 1e-14


def test_weight_decay_and_momentum_may_come_from_theta() -> None:
    params = map_tree(torch.Tensor.detach, parameters())
    meta = {"decay": torch.tensor(0.01, dtype=torch.float64), "momentum": torch.tensor(0.9, dtype=torch.float64)}
    plain = ms.SGD(0.1, momentum=0.9, weight_decay=0.01)
    learned = ms.SGD(0.1, momentum=lambda m, t: m["momentum"], weight_decay=lambda m, t: m["decay"])
    a = plain.advance(plain.init(params), gradient(params, 0), None, 5)
    b = learned.advance(learned.init(params), gradient(params, 0), meta, 5)
    assert relative_error(a.params, b.params) < 1e-14


@pytest.mark.parametrize("name", [name for name in DYNAMICS if name not in OWN])
def test_missing_gradients_act_as_zeros(name: str) -> None:
    dynamics, params = DYNAMICS[name], map_tree(torch.Tensor.detach, parameters())
    warm = dynamics.advance(dynamics.init(params), gradient(params, 0), None, 1)
    g = gradient(params, 1)
    a = dynamics.advance(warm, {"w": g["w"], "b": None}, None, 3)
    b = dynamics.advance(warm, {"w": g["w"], "b": torch.zeros_like(g["b"])}, None, 3)
    assert relative_error(a.params, b.params) == 0
    assert name == "sgd" or not torch.equal(a.params["b"], warm.params["b"])  # it coasts


def test_states_are_values() -> None:
    params = map_tree(torch.Tensor.detach, parameters())
    for dynamics in DYNAMICS.values():
        state = dynamics.init(params)
        kept = map_tree(torch.clone, tuple(state[:2]))
        dynamics.advance(state, gradient(params, 0), None, 3)
        assert all(torch.equal(a, b) for a, b in zip(tree_leaves(kept), tree_leaves(tuple(state[:2])), strict=True))


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1), lambda meta, step: 0.1 * 0.9**step])
def test_the_sweep_stores_params_alone_where_rates_are_constants(rate: Any) -> None:
    loss = lambda params, meta, batch: (params * params * meta).sum()  # noqa: E731
    problem = ms.Problem(lambda meta, task: torch.ones(5), ms.every_window(loss), loss)
    loop = InnerLoop(problem, ms.SGD(rate, momentum=0.9), (1, 2))
    task = ms.Task((), ())
    kept, _ = loop.traverse(loop.windows(task), loop.begin(torch.ones(()), task), torch.ones(()))
    for point in kept:
        assert not any(leaf.any() for leaf in tree_leaves((point.grad, point.state.memory)))


@pytest.mark.parametrize("dynamics", [ms.SGD(torch.tensor(0.1, dtype=torch.float64), 0.9), ms.Adam()])
def test_parameters_keep_their_type(dynamics: Any) -> None:
    """A tensor without dimension would take the finer type of a rate or of a step count that is a tensor"""
    state = dynamics.init({"scale": torch.tensor(1.0)})._replace(step=torch.tensor(2.0, dtype=torch.float64))
    after = dynamics.advance(state, {"scale": torch.tensor(0.5)}, None, 2)
    assert after.params["scale"].dtype == torch.float32


def test_what_is_neither_number_nor_tensor_is_no_rate() -> None:
    with pytest.raises(ms.MetastepError, match=r"SGD: lr = .* must be a number that is at least 0"):
        ms.SGD(numpy.float32(0.1))  # type: ignore[arg-type]
