"""Every number of an inner optimizer may be a number, a tensor, a tree or a function, or is refused by name."""

import pickle
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

import metastep as ms
from metastep.core import registry
from metastep.core.entrywise import Entrywise
from metastep.core.options import options_of
from metastep.core.trees import map_tree
from tests.core.helpers import by_autograd, case, randn, relative_error

# Each number of each optimizer, with a value that is not its default.
VALUES: dict[str, float] = {
    "lr": 0.05, "momentum": 0.8, "dampening": 0.3, "weight_decay": 0.1, "betas[0]": 0.7, "betas[1]": 0.95,
    "eps": 1e-3, "alpha": 0.8,
}  # fmt: skip
OURS = [name for name in registry.names("optimizer") if registry.is_ours(registry.named("optimizer", name))]
NUMBERS = [
    (name, number)
    for name in OURS
    for number in VALUES
    if number.split("[")[0] in options_of(registry.named("optimizer", name))
]


def of(name: str, number: str, value: Any) -> ms.optimizers.InnerOptimizer:
    """The optimizer whose numbers are those above, but for one"""
    given: dict[str, Any] = {n: VALUES[n] for owner, n in NUMBERS if owner == name and "[" not in n}
    if number.startswith("betas"):
        given["betas"] = (value, VALUES["betas[1]"]) if number == "betas[0]" else (VALUES["betas[0]"], value)
    else:
        given[number] = value
    made: ms.optimizers.InnerOptimizer = registry.named("optimizer", name)(**given)
    return made


def params() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {"w": randn(3, 2), "b": randn(2)}


def after(inner: ms.optimizers.InnerOptimizer, meta: Any = None) -> Any:
    state = inner.init(params())
    for t in range(3):
        state = inner.advance(state, map_tree(lambda p, t=t: torch.sin(3 * p + t), state.params), meta, 2)
    return state.params, state.memory


def test_all_numbers_of_all_optimizers_are_here() -> None:
    for name in OURS:
        kind = registry.named("optimizer", name)
        assert issubclass(kind, Entrywise)
        plain = {field.name for field in fields(kind)} - {"nesterov"}
        assert {number.split("[")[0] for owner, number in NUMBERS if owner == name} == plain == set(kind.numbers)


@pytest.mark.parametrize(("name", "number"), NUMBERS)
def test_any_form_gives_what_the_number_gives(name: str, number: str) -> None:
    value = VALUES[number]
    expected = after(of(name, number, value))
    tensor = torch.tensor(value, dtype=torch.float64)
    tree = {"w": tensor.expand(3, 2).clone(), "b": value}
    for other in (tensor, tree, lambda meta, step: value, lambda meta, step: meta, lambda meta, step: tree):
        assert relative_error(after(of(name, number, other), tensor), expected) < 1e-13
    per_leaf = after(of(name, number, {"w": value / 2, "b": value}))[0]
    assert relative_error(per_leaf["b"], expected[0]["b"]) < 1e-13
    assert relative_error(per_leaf["w"], expected[0]["w"]) > 1e-9


@pytest.mark.parametrize(("name", "number"), NUMBERS)
def test_any_number_can_be_learned(name: str, number: str) -> None:
    """The meta-gradient in the number is the derivative of the same loop by differences"""

    def outer(value: Tensor) -> Tensor:
        inner = of(name, number, lambda meta, step: meta * (1 + 0.01 * step))
        problem = ms.Problem(
            lambda meta, task: params(), ms.every_window(loss), lambda p, meta, task: loss(p, meta, 1.0)
        )
        gradient = ms.MetaGradient(problem, ms.MultiStep(window=2), inner, steps=4)
        estimate = gradient(value, [ms.Task(torch.tensor(0.5), torch.tensor(0.5))])
        outer.grad = estimate.grad  # type: ignore[attr-defined]
        return estimate.loss

    def loss(p: Any, meta: Tensor, batch: Any) -> Tensor:
        return ((p["w"] + p["b"]).sin() - batch).square().sum() + p["b"].pow(4).sum()

    value, delta = torch.tensor(VALUES[number], dtype=torch.float64), 1e-6
    slope = (outer(value + delta) - outer(value - delta)) / (2 * delta)
    outer(value)
    assert slope.abs() > 1e-6
    torch.testing.assert_close(outer.grad, slope, rtol=1e-6, atol=1e-9)  # type: ignore[attr-defined]


WRONG = {
    "text": "0.1", "nothing": None, "a flag": True, "not finite": float("nan"), "too small": -0.1,
    "another function": lambda step: 0.1, "text in a tree": {"w": 0.1, "b": "0.1"}, "an empty tree": {},
    "one that requires grad": torch.tensor(0.1, requires_grad=True), "whether": torch.tensor(True),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("name", "number"), NUMBERS)
def test_what_is_no_number_is_refused_where_it_is_given(name: str, number: str, wrong: str) -> None:
    with pytest.raises(ms.MetastepError) as refused:
        of(name, number, WRONG[wrong])
    assert f"{registry.named('optimizer', name).__name__}: {number}" in str(refused.value)


@pytest.mark.parametrize("returned", ["0.1", None, True, float("inf"), -0.1, {"w": None, "b": 0.1}])
@pytest.mark.parametrize(("name", "number"), NUMBERS)
def test_what_a_function_returns_is_looked_at_by_name(name: str, number: str, returned: Any) -> None:
    with pytest.raises(ms.MetastepError, match="at step 1") as refused:
        after(of(name, number, lambda meta, step: returned if step else VALUES[number]))
    assert number in str(refused.value)


def test_pairs_are_pairs() -> None:
    for betas in (0.9, (0.9,), lambda meta, step: (0.9, 0.99)):
        with pytest.raises(ms.MetastepError, match=r"Adam: betas = .* must be a tuple of 2"):
            ms.Adam(betas=betas)  # type: ignore[arg-type]


def test_nesterov_needs_a_dampening_that_is_zero() -> None:
    for options in ({"momentum": 0}, {"momentum": 0.9, "dampening": lambda meta, step: 0.0}):
        with pytest.raises(ms.MetastepError, match="nesterov=True needs momentum above 0 and dampening 0"):
            ms.SGD(0.1, nesterov=True, **options)  # type: ignore[arg-type]


def test_optimizers_are_values() -> None:
    assert repr(ms.AdamW(0.1)) == "AdamW(lr=0.1)"
    assert repr(ms.SGD(lr=0.1, momentum=0.9)) == "SGD(lr=0.1, momentum=0.9)"
    assert ms.AdamW(0.1) == pickle.loads(pickle.dumps(ms.AdamW(0.1))) != ms.Adam(0.1, weight_decay=1e-2)
    with pytest.raises(ms.MetastepError, match=r"SGD has no option 'mometum'. Did you mean 'momentum'\?"):
        ms.SGD(lr=0.1, mometum=0.9)  # type: ignore[call-arg]
    with pytest.raises(ms.MetastepError, match="missing a required argument: 'lr'"):
        ms.SGD()  # type: ignore[call-arg]


# ---- clipping

INNER: dict[str, ms.optimizers.InnerOptimizer] = {
    "sgd": ms.SGD(0.1, momentum=0.9), "adam": ms.Adam(0.05, eps=1e-3), "rmsprop": ms.RMSprop(0.05, eps=1e-2)
}  # fmt: skip
CLIPS: dict[str, dict[str, Any]] = {
    "norm": {"norm": 0.05},
    "norm, never": {"norm": 1e6},
    "norm, a function": {"norm": lambda meta, step: 0.02 * (step + 1)},
    "value": {"value": 0.01},
    "value, a tensor": {"value": torch.tensor(0.01)},
}


@pytest.mark.parametrize("chunk_size", [None, 1], ids=["mapped", "one by one"])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("name", INNER)
def test_the_derivative_goes_through_the_clip(name: str, clip: str, chunk_size: int | None) -> None:
    problem, meta, tasks = case("regression")
    inner = ms.optimizers.clipped(INNER[name], **CLIPS[clip])
    gradient = ms.MetaGradient(problem, ms.MultiStep(window=[2, 3]), inner, steps=5, chunk_size=chunk_size)
    found = gradient(meta, tasks)
    assert relative_error(found.grad, by_autograd(gradient, meta, tasks).grad) < 1e-12
    unclipped = ms.MetaGradient(problem, ms.MultiStep(window=[2, 3]), INNER[name], steps=5)(meta, tasks)
    assert (relative_error(found.grad, unclipped.grad) < 1e-12) == (clip == "norm, never")


@pytest.mark.parametrize("clip", CLIPS)
def test_clips_as_torch_does(clip: str) -> None:
    start = params()
    real = {name: torch.nn.Parameter(p.clone()) for name, p in start.items()}
    optimizer = torch.optim.SGD(real.values(), lr=0.1, momentum=0.9)
    inner, limits = ms.optimizers.clipped(ms.SGD(0.1, momentum=0.9), **CLIPS[clip]), dict(CLIPS[clip])
    state = inner.init(start)
    for t in range(8):
        grad = map_tree(lambda p, t=t: torch.sin(3 * p + t), state.params)
        state = inner.advance(state, grad, None, 1)
        for name, p in real.items():
            p.grad = grad[name].clone()
        norm, value = limits.get("norm"), limits.get("value")
        if norm is not None:
            torch.nn.utils.clip_grad_norm_(real.values(), norm(None, t) if callable(norm) else norm)
        else:
            torch.nn.utils.clip_grad_value_(real.values(), float(value))  # type: ignore[arg-type]
        optimizer.step()
    assert relative_error(state.params, map_tree(torch.Tensor.detach, real)) < 1e-12


def test_a_gradient_of_zero_is_not_clipped_to_nan() -> None:
    problem = ms.Problem(
        lambda meta, task: {"w": meta},
        ms.every_window(lambda p, m, b: p["w"].square().sum()),
        lambda p, m, t: p["w"].sum(),
    )
    inner = ms.optimizers.clipped(ms.SGD(0.1), norm=1.0)
    found = ms.MetaGradient(problem, ms.MAML(), inner, steps=2)(torch.zeros(3), [ms.Task(torch.ones(1), torch.ones(1))])
    torch.testing.assert_close(found.grad, torch.full((3,), 0.8**2))


def test_learned_rates_go_into_a_clipped_optimizer() -> None:
    problem, meta, tasks = case("regression")
    gradient = ms.MetaGradient(problem, ms.MetaSGD(), ms.optimizers.clipped(ms.SGD(0.1), norm=0.1), steps=3)
    both = gradient.init(meta)
    assert relative_error(gradient(both, tasks).grad, by_autograd(gradient, both, tasks).grad) < 1e-12


def test_clipped_optimizers_are_values() -> None:
    inner = ms.optimizers.clipped(ms.optimizers.clipped(ms.Adam(0.01), norm=1.0), value=0.1)
    assert repr(inner) == "clipped(clipped(Adam(lr=0.01), norm=1.0), value=0.1)"
    assert pickle.loads(pickle.dumps(inner)) == inner


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Give exactly one of them"),
        ({"norm": 1.0, "value": 1.0}, "Give exactly one of them"),
        ({"norm": 0.0}, "clipped: norm = 0.0 must be a number that is above 0"),
        ({"value": "1"}, "clipped: value = '1' must be a number"),
        ({"norm": {"w": 1.0, "b": 1.0}}, "clipped: norm = .* must be one number"),
        ({"norm": lambda meta, step: -1.0}, "clipped: norm at step 0 = -1.0 must be"),
    ],
)
def test_limits_that_are_none_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ms.MetastepError, match=said):
        after(ms.optimizers.clipped(ms.SGD(0.1), **given))


def test_only_an_inner_optimizer_is_clipped() -> None:
    with pytest.raises(ms.MetastepError, match="is not an inner optimizer"):
        ms.optimizers.clipped(torch.nn.Linear(1, 1), norm=1.0)  # type: ignore[arg-type]


def test_weight_decay_inside_is_seen() -> None:
    inner = ms.optimizers.clipped(ms.SGD(0.1, weight_decay=0.1), norm=1)
    with pytest.raises(ms.MetastepError, match="inner optimizer is missing from the implicit gradient"):
        ms.MetaGradient(case("regression").problem, ms.IMAML(), inner, steps=1)
