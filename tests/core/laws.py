"""What must hold of everything that is registered, ours or a plug-in's: the tests go through the registry."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import metastep as ms
from metastep.core.options import REQUIRED, Option, options_of
from metastep.core.registry import name_of, named
from metastep.core.trees import Tree, add, dot, map_tree, scale, subtract, tree_flatten, tree_leaves, tree_unflatten
from metastep.core.windows import Window
from tests.core.helpers import by_autograd, case, first, method, relative_error

F64 = torch.float64
NEEDED = {"lr": 0.05}  # options without a default
OTHER = {float: 0.3, tuple: (0.7, 0.9), int: 2}  # values that are nobody's default


def optimizer(name: str, **options: Any) -> ms.optimizers.InnerOptimizer:
    """The registered optimizer of this name; what it needs is filled in"""
    made: ms.optimizers.InnerOptimizer = named("optimizer", name)(**{**_needed(name), **options})
    return made


def _needed(name: str) -> dict[str, Any]:
    options = options_of(named("optimizer", name)).values()
    return {option.name: NEEDED[option.name] for option in options if option.default is REQUIRED}


def variants(name: str) -> Iterator[dict[str, Any]]:
    """Options that differ from the defaults, one at a time, and all numbers together"""
    options = options_of(named("optimizer", name))
    changed = {option.name: _other(option) for option in options.values()}
    yield {}
    numbers = {key: value for key, value in changed.items() if not isinstance(value, bool)}
    yield numbers
    for key, value in changed.items():
        yield {key: value}
    for key in changed.keys() - numbers.keys():  # a flag may need a number, or exclude one
        for number in numbers:
            yield {key: changed[key], number: numbers[number]}


def _other(option: Option) -> Any:
    if isinstance(option.default, bool):
        return not option.default
    value = OTHER[tuple if isinstance(option.default, tuple) else float]
    return 0.02 if option.name == "lr" else value


def optimizer_says_what_it_is(name: str) -> None:
    kind, made = named("optimizer", name), optimizer(name)
    assert name_of(made) == name
    assert [option.name for option in options_of(kind).values() if not option.help] == []
    assert pickle.loads(pickle.dumps(made)) == made == replace(made)  # type: ignore[type-var]
    assert hash(made) == hash(optimizer(name))


def _params() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {"w": torch.randn(3, 2, dtype=F64), "b": torch.randn(2, dtype=F64)}


def _gradient(params: Tree, t: int) -> Tree:
    return map_tree(lambda p: torch.sin(3 * p + t), params)


def optimizer_equals_its_original(name: str) -> int:
    """For all of its options; returns how many settings were compared"""
    original = named("optimizer", name).original
    compared = 0
    for options in variants(name):
        try:
            inner = optimizer(name, **options)
        except ms.MetastepError:  # options that exclude each other, in torch.optim too
            with pytest.raises(ValueError, match=r".+"):
                original([torch.zeros(1)], **{**_needed(name), **options})
            continue
        params = map_tree(lambda p: p.clone().requires_grad_(), _params())
        state, theirs = inner.init(_params()), original(list(params.values()), **{**_needed(name), **options})
        for t in range(12):
            state = inner.advance(state, _gradient(state.params, t), None, 1)
            for p, g in zip(params.values(), tree_leaves(_gradient(map_tree(Tensor.detach, params), t)), strict=True):
                p.grad = g
            theirs.step()
        assert relative_error(state.params, map_tree(Tensor.detach, params)) < 1e-12, options
        compared += 1
    return compared


def optimizer_window_is_its_steps(name: str) -> None:
    inner = optimizer(name)
    state = inner.advance(inner.init(_params()), _gradient(_params(), 5), None, 1)
    g, singly = _gradient(_params(), 0), state
    for _ in range(5):
        singly = inner.advance(singly, g, None, 1)
    at_once = inner.advance(state, g, None, 5)
    assert at_once.step == singly.step == 6
    assert relative_error((at_once.params, at_once.memory), (singly.params, singly.memory)) < 1e-13


def optimizer_is_linear_if_it_says_so(name: str) -> bool:
    """Returns what it says"""
    inner = optimizer(name)
    states = [inner.advance(inner.init(_params()), _gradient(_params(), t), None, 1) for t in (1, 2)]
    if not ms.optimizers.is_linear(inner, states[0], None, 3):
        return False
    gradients = [_gradient(_params(), t) for t in (3, 4)]

    def after(state: ms.optimizers.State, g: Tree) -> Tree:
        moved = inner.advance(state, g, None, 3)
        return moved.params, moved.memory

    mixed = [add(scale(0.3, a), scale(-1.7, b)) for a, b in (tuple(s[:2] for s in states), gradients)]
    found = after(ms.optimizers.State(*mixed[0], states[0].step), mixed[1])
    apart = [after(state, g) for state, g in zip(states, gradients, strict=True)]
    assert relative_error(found, add(scale(0.3, apart[0]), scale(-1.7, apart[1]))) < 1e-12
    return True


def optimizer_pulls_back_what_differences_give(name: str) -> None:
    inner = optimizer(name)
    state = inner.advance(inner.init(_params()), _gradient(_params(), 5), None, 1)
    leaves, spec = tree_flatten((state.params, state.memory, _gradient(_params(), 0)))

    def value(*leaves: Tensor) -> Tensor:
        params, memory, g = tree_unflatten(list(leaves), spec)
        moved = inner.advance(ms.optimizers.State(params, memory, state.step), g, None, 3)
        outputs = tree_leaves((moved.params, moved.memory))
        return torch.stack(
            [(x * torch.cos(torch.arange(x.numel(), dtype=F64)).view_as(x)).sum() for x in outputs]
        ).sum()

    assert torch.autograd.gradcheck(value, [leaf.requires_grad_() for leaf in leaves], eps=1e-6, atol=1e-6)


def method_gives_the_derivative_of_its_loop(name: str, made: ms.methods.Method | None = None) -> None:
    """By plain autograd through the stored unroll; a θ that is not where φ starts may be refused"""
    made = method(name) if made is None else made
    equals_autograd(made, "regression")
    try:
        equals_autograd(made, "two_losses")
    except ms.MetastepError as refused:
        assert "." in str(refused)  # noqa: PT017 - it may be refused, and must not be wrong


def equals_autograd(made: ms.methods.Method, problem: str) -> None:
    p, params, tasks = case(problem)
    gradient = ms.MetaGradient(p, made, optimizer("sgd", momentum=0.9), steps=4)
    meta = gradient.init(params)
    found, expected = gradient(meta, tasks), by_autograd(gradient, meta, tasks)
    assert relative_error(found.loss, expected.loss) < 1e-12
    assert relative_error(found.grad, expected.grad) < 1e-10


def method_refuses_a_theta_that_it_cannot_learn(name: str) -> None:
    p, meta, tasks = case("meta_network")
    with pytest.raises(ms.MetastepError, match=r"Use ms\.MultiStep"):
        ms.MetaGradient(p, method(name), optimizer("sgd"), steps=4)(meta, tasks)


def curvature_is_right_on_a_quadratic(name: str, draws: int = 400) -> None:
    """Its mean over draws is the exact product; one without noise is exact at once. A curvature may refuse θ."""
    curvature = named("curvature", name)
    curvature = curvature() if isinstance(curvature, type) else curvature
    torch.manual_seed(0)
    root, mixed, d = torch.randn(4, 4, dtype=F64), torch.randn(4, 3, dtype=F64), torch.randn(4, dtype=F64)
    h, params, meta = root.T @ root, torch.randn(4, dtype=F64), torch.randn(3, dtype=F64)

    def alone(params: Tree, meta: Tree, batch: Any) -> Tensor:
        return 0.5 * params @ h @ params

    def together(params: Tree, meta: Tree, batch: Any) -> Tensor:
        return alone(params, meta, batch) + params @ mixed @ meta

    def mean_is(loss: Any, expected: tuple[Tensor, Tensor]) -> None:
        with torch.no_grad():
            found = [torch.cat(curvature(Window(loss, None, 1), params, meta, d)) for _ in range(draws)]
        samples, exact = torch.stack(found), torch.cat(expected)
        error, spread = samples.mean(0) - exact, samples.std(0) / draws**0.5
        assert bool((error.abs() <= 5 * spread + 1e-9 * exact.abs().max()).all())

    mean_is(alone, (h @ d, torch.zeros(3, dtype=F64)))
    try:
        mean_is(together, (h @ d, mixed.T @ d))
    except ms.MetastepError as refused:
        assert "needs θ to act through φ's start alone" in str(refused)  # noqa: PT017 - or it is right


def curvature_gives_zero_for_zero(name: str) -> None:
    curvature = named("curvature", name)
    curvature = curvature() if isinstance(curvature, type) else curvature
    p, meta, tasks = case("regression")
    window = p.windows(first(tasks), [1])[0]
    with torch.no_grad():
        h, c = curvature(window, meta, meta, map_tree(torch.zeros_like, meta))
    assert map_tree(lambda x: x.shape, h) == map_tree(lambda x: x.shape, c) == map_tree(lambda x: x.shape, meta)
    assert float(dot(h, h) + dot(c, c)) == 0
    assert tree_flatten(subtract(h, meta))[1] == tree_flatten(meta)[1]
