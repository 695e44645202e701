"""Any optimizer of torch.optim is an inner optimizer: its steps are the original's, and their derivative is exact."""

import math
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler

import metastep as ms
from metastep.core.torch_optimizer import TorchOptimizer
from metastep.core.torch_originals import Continuing
from metastep.core.trees import map_tree, tree_leaves
from metastep.step.differentiate import Autograd, Nesting
from metastep.step.motion import Recorded
from tests.core.helpers import by_autograd, case, randn, relative_error

TRACED: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd maximize": (optim.SGD, {"lr": 0.1, "maximize": True}),
    "sgd dampened": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1, "maximize": True}),
    "sgd nesterov": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    "adam amsgrad": (optim.Adam, {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1}),
    "adam maximize": (optim.Adam, {"lr": 0.1, "maximize": True}),
    "adamw amsgrad": (optim.AdamW, {"lr": 0.1, "amsgrad": True}),
    "rmsprop centered": (optim.RMSprop, {"lr": 0.05, "alpha": 0.9, "centered": True, "momentum": 0.5, "eps": 1e-3}),
    "adagrad": (optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.1, "weight_decay": 0.1}),
    "adadelta": (optim.Adadelta, {"lr": 0.5, "eps": 1e-2}),
    "adamax": (optim.Adamax, {"lr": 0.1, "weight_decay": 0.1}),
    "radam": (optim.RAdam, {"lr": 0.1, "weight_decay": 0.1}),
    "radam decoupled": (optim.RAdam, {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "nadam": (optim.NAdam, {"lr": 0.1, "weight_decay": 0.1}),
    "asgd": (optim.ASGD, {"lr": 0.1, "t0": 3, "lambd": 0.01}),
    "rprop": (optim.Rprop, {"lr": 0.02}),
}
OURS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (optim.Adam, {"lr": 0.1, "weight_decay": 0.1}),
    "adamw": (optim.AdamW, {"lr": 0.1}),
    "rmsprop": (optim.RMSprop, {"lr": 0.1, "momentum": 0.5}),
}
Params = dict[str, nn.Parameter]


def parameters() -> Params:
    torch.manual_seed(0)
    return {"w": nn.Parameter(randn(3, 2)), "b": nn.Parameter(randn(2))}


def values(params: Params) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in params.items()}


def gradient(params: Any, t: int) -> Any:
    return map_tree(lambda p: torch.sin(3 * p.detach() + t), params)


def real_step(optimizer: Any, params: Params, grads: Any) -> None:
    for name, p in params.items():
        p.grad = None if grads[name] is None else grads[name].clone()
    optimizer.step()


def traces(inner: Any) -> int:
    """How many there are of one shape, at most"""
    count: Counter[Any] = Counter()
    for (*_, (own, *_), _), found in inner._traces.items():
        count[own] += len(found)
    return max(count.values())


def follow(inner: Any, optimizer: Any, params: Params, steps: int = 10, scheduler: Any = None) -> ms.optimizers.State:
    """Both, side by side"""
    state = inner.init(values(params))
    for t in range(steps):
        grads = gradient(state.params, t)
        state = inner.advance(state, grads, None, 1)
        real_step(optimizer, params, grads)
        if scheduler is not None:
            scheduler.step()
        assert relative_error(state.params, values(params)) < 1e-12
    return state


# ---- the steps are the original's


@pytest.mark.parametrize("name", TRACED)
def test_equals_the_original(name: str) -> None:
    kind, options = TRACED[name]
    params = parameters()
    optimizer = kind(params.values(), **options)
    inner: Any = ms.optimizers.from_torch(optimizer, params)
    assert isinstance(inner, TorchOptimizer)
    state = follow(inner, optimizer, params)
    for slots, p in zip(state.memory, params.values(), strict=True):
        own = {n: v for n, v in optimizer.state[p].items() if n != "step" and v is not None}
        assert slots.keys() == own.keys()
        assert not own or relative_error(slots, own) < 1e-12
    assert traces(inner) <= 3


class DecaysMatrices(optim.Optimizer):
    """SGD as a third party may write it: linear, and not alike for all shapes."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim > 1:
                    p.data.mul_(0.9)
                buffer = self.state[p].setdefault("buffer", torch.zeros_like(p))
                buffer.mul_(0.5).add_(p.grad)
                p.data.sub_(buffer * group["lr"])


LINEAR = {name: TRACED[name] for name in ("sgd maximize", "sgd dampened", "sgd nesterov")} | {
    "a third party's": (DecaysMatrices, {"lr": 0.1})
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_steps_that_share_a_gradient_are_one(name: str) -> None:
    kind, options = LINEAR[name]
    params = parameters()
    inner: Any = ms.optimizers.from_torch(kind(params.values(), **options), params)
    at_once = one_by_one = inner.init(values(params))
    for steps in (3, 2):
        grads = gradient(at_once.params, steps)
        at_once = inner.advance(at_once, grads, None, steps)
        for _ in range(steps):
            one_by_one = inner.advance(one_by_one, grads, None, 1)
        assert relative_error((at_once.params, at_once.memory), (one_by_one.params, one_by_one.memory)) < 1e-12
    follow(inner, kind(params.values(), **options), params)
    assert any(rows is not None for rows in inner._known_rows.values())


@pytest.mark.parametrize("name", [*TRACED, *OURS])
def test_goes_on_from_the_state_that_it_has(name: str) -> None:
    kind, options = (TRACED | OURS)[name]
    params = parameters()
    optimizer = kind(params.values(), **options)
    for t in range(7):
        real_step(optimizer, params, gradient(params, t))
    inner = ms.optimizers.from_torch(optimizer, params)
    assert isinstance(inner, TorchOptimizer if name in TRACED else Continuing)
    before = map_tree(torch.clone, [dict(optimizer.state[p]) for p in params.values()])
    follow(pickle.loads(pickle.dumps(inner)), optimizer, params)
    again = inner.init(values(params)).memory  # the optimizer has moved on, and what was made of it has not
    kept = [leaf for leaf in tree_leaves(before) if leaf.dim()]
    assert all(any(torch.equal(leaf, other) for other in kept) for leaf in tree_leaves(again) if leaf.dim())


@pytest.mark.parametrize("name", OURS)
def test_what_is_ours_becomes_ours(name: str) -> None:
    kind, options = OURS[name]
    params = parameters()
    inner = ms.optimizers.from_torch(kind(params.values(), **options), params)
    assert type(inner) is {"sgd": ms.SGD, "adam": ms.Adam, "adamw": ms.AdamW, "rmsprop": ms.RMSprop}[name]
    follow(inner, kind(params.values(), **options), params)


@pytest.mark.parametrize("flags", [{"foreach": True}, {"fused": True}, {"differentiable": True}])
@pytest.mark.parametrize("name", ["adam amsgrad", "sgd dampened", "nadam", "adam"])
def test_flags_change_nothing(name: str, flags: dict[str, bool]) -> None:
    kind, options = (TRACED | OURS)[name]
    if kind is optim.NAdam and "fused" in flags:
        return
    params = parameters()
    plain = kind(params.values(), **options)
    follow(ms.optimizers.from_torch(kind(params.values(), **options, **flags), params), plain, params, steps=4)


GROUPS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "ours": (optim.Adam, {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3}, {"lr": 0.2, "weight_decay": 0.1}),
    "ours, momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.0}, {"lr": 0.2, "momentum": 0.9, "dampening": 0.1}),
    "traced": (optim.NAdam, {"lr": 0.1, "betas": (0.5, 0.9)}, {"lr": 0.2, "weight_decay": 0.1, "momentum_decay": 0.1}),
    "one of them maximizes": (optim.Adam, {"lr": 0.1, "maximize": True}, {"lr": 0.2}),
    "one of them looks ahead": (
        optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True},
        {"momentum": 0.5, "lr": 0.1},
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups_have_options_of_their_own(name: str) -> None:
    kind, first, second = GROUPS[name]
    params = parameters()
    optimizer = kind([{"params": [params["b"]], **first}, {"params": [params["w"]], **second}])
    inner = ms.optimizers.from_torch(optimizer, params)
    assert isinstance(inner, ms.Adam | ms.SGD) == name.startswith("ours")
    follow(inner, optimizer, params)


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 3, 0.5),
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (1 + t)),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "warm-up from 0": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda t: t / 5),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=12),
    "cyclic": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, 3, cycle_momentum=False),
    "one after the other": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 4), lr_scheduler.ExponentialLR(optimizer, 0.9)], [4]
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULERS)
@pytest.mark.parametrize("name", ["adam", "sgd", "nadam", "adam amsgrad"])
@pytest.mark.filterwarnings("ignore:.*epoch parameter.*")
def test_schedulers(name: str, schedule: str) -> None:
    kind, options = (TRACED | OURS)[name]
    params = parameters()
    optimizer = kind([{"params": [params["w"]]}, {"params": [params["b"]], "weight_decay": 0.3}], **options)
    scheduler = SCHEDULERS[schedule](optimizer)
    for t in range(2):  # the schedule goes on from where it is
        real_step(optimizer, params, gradient(params, t))
        scheduler.step()
    inner: Any = ms.optimizers.from_torch(optimizer, params, scheduler=scheduler)
    follow(inner, optimizer, params, scheduler=scheduler, steps=9)
    assert name in OURS or traces(inner) <= 3


def test_a_rate_that_fills_a_tensor_is_scheduled() -> None:
    """Rprop begins with steps of its rate."""
    params = parameters()
    optimizer = optim.Rprop([{"params": [params["w"]]}, {"params": [params["b"]], "lr": 0.3}], lr=0.1)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    follow(ms.optimizers.from_torch(optimizer, params, scheduler=scheduler), optimizer, params, scheduler=scheduler)


def test_a_schedule_that_changes_something_else_or_ends_is_refused() -> None:
    class Decay(lr_scheduler.LRScheduler):
        def get_lr(self) -> Any:
            for group in self.optimizer.param_groups:
                group["weight_decay"] = 0.1 * self.last_epoch
            return [group["lr"] for group in self.optimizer.param_groups]

    params = parameters()
    for make, said in {
        Decay: "Decay changes weight_decay", SCHEDULERS["one cycle"]: "OneCycleLR gives no rate for inner step 13"
    }.items():  # fmt: skip
        optimizer = optim.NAdam(params.values())
        inner = ms.optimizers.from_torch(optimizer, params, scheduler=make(optimizer))
        with pytest.raises(ms.MetastepError, match=said):
            inner.advance(inner.init(values(params)), gradient(params, 0), None, 20)
    for scheduler, said in {
        lr_scheduler.ReduceLROnPlateau(optimizer): "looks at a loss",
        lr_scheduler.StepLR(optim.SGD(params.values(), 0.1), 1): "made for another optimizer",
        0.1: "scheduler = float must be one of",
    }.items():
        with pytest.raises(ms.MetastepError, match=said):
            ms.optimizers.from_torch(optimizer, params, scheduler=scheduler)


def test_three_traces_serve_16384_steps() -> None:
    params = {"w": nn.Parameter(randn(3))}
    optimizer = optim.RAdam(params.values(), lr=0.1)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (1 + t))
    inner: Any = ms.optimizers.from_torch(optimizer, params, scheduler=scheduler)
    state = inner.advance(inner.init(values(params)), {"w": torch.ones(3, dtype=torch.float64)}, None, 16384)
    assert state.step == 16384
    assert traces(inner) <= 3
    assert all(leaf.isfinite().all() for leaf in tree_leaves(state.params))


# ---- parameters without a gradient, and those that the optimizer does not hold


@pytest.mark.parametrize("name", TRACED)
def test_a_parameter_without_gradient_is_left_alone(name: str) -> None:
    kind, options = TRACED[name]
    params = parameters()
    optimizer = kind(params.values(), **options)
    inner = ms.optimizers.from_torch(optimizer, params)
    state = inner.init(values(params))
    for t, is_missing in enumerate([True, False, False, True, True, False, False]):
        grads = gradient(state.params, t) | ({"b": None} if is_missing else {})
        before = state.params["b"]
        state = inner.advance(state, grads, None, 1)
        real_step(optimizer, params, grads)
        assert relative_error(state.params, values(params)) < 1e-12
        assert torch.equal(state.params["b"], before) == is_missing


@pytest.mark.parametrize("kind", [optim.Adam, optim.NAdam])
def test_what_the_optimizer_does_not_hold_is_left_alone(kind: Any) -> None:
    params = parameters()
    optimizer = kind([params["w"]], lr=0.1)
    follow(ms.optimizers.from_torch(optimizer, params), optimizer, params)


def test_parameters_that_differ_in_their_steps() -> None:
    params = parameters()
    optimizer = optim.Adam(params.values(), lr=0.1)
    for t in range(4):
        real_step(optimizer, params, gradient(params, t) | ({"b": None} if t < 3 else {}))
    follow(ms.optimizers.from_torch(optimizer, params), optimizer, params)


# ---- the derivative


def along(tree: Any, direction: Any, by: float) -> Any:
    return map_tree(lambda x, d: (x + by * d).detach(), tree, direction)


@pytest.mark.parametrize("name", TRACED)
def test_the_meta_gradient_is_the_derivative(name: str) -> None:
    problem, meta, tasks = case("regression")
    kind, options = TRACED[name]
    optimizer = kind(problem.made_of.module.parameters(), **options)
    gradient = ms.MetaGradient(problem, ms.MAML(), optimizer, steps=6)
    direction, delta, found = map_tree(torch.sin, meta), 1e-6, gradient(meta, tasks)
    after, before = (gradient.judge(along(meta, direction, by), tasks).loss for by in (delta, -delta))
    slope = sum((found.grad[n] * d).sum() for n, d in direction.items())
    torch.testing.assert_close(slope, (after - before) / (2 * delta), rtol=1e-6, atol=1e-8)

    singly = ms.MetaGradient(problem, ms.MAML(), gradient.inner, steps=6, chunk_size=1)(meta, tasks)
    assert relative_error(found.grad, singly.grad) < 1e-10
    windows = ms.MetaGradient(problem, ms.MultiStep(window=4), gradient.inner, steps=6)
    assert relative_error(windows(meta, tasks).grad, by_autograd(windows, meta, tasks).grad) < 1e-10
    assert traces(gradient.inner) <= 3


# ---- all parameters as one vector


@pytest.mark.parametrize("begun", [0, 7])
@pytest.mark.parametrize("name", TRACED)
def test_one_vector_moves_as_its_parts_do(name: str, begun: int) -> None:
    kind, options = TRACED[name]
    params = parameters()
    optimizer = kind(params.values(), **options)
    for t in range(begun):
        real_step(optimizer, params, gradient(params, t))
    inner: Any = ms.optimizers.from_torch(optimizer, params)
    tensors = list(values(params).values())
    together = inner.of_one_vector(tensors)
    assert together is not None
    recorded = Recorded(inner, Autograd(), Nesting(values(params)), Nesting([]), tensors)
    state = inner.init(values(params))
    at = recorded.begin(state)
    assert [p.shape for p in at.params] == [torch.Size([8])]
    for t in range(10):
        grads = gradient(state.params, t)
        state, at = inner.advance(state, grads, None, 1), recorded.move(at, list(grads.values()), [], 1)
    found = recorded.state(at)
    assert relative_error(found.params, state.params) < 1e-12
    assert not tree_leaves(state.memory) or relative_error(found.memory, state.memory) < 1e-12
    assert found.step == state.step


def test_what_does_not_move_alike_is_no_vector() -> None:
    params = parameters()
    tensors, both = list(params.values()), [{"params": [p], "lr": 0.1 * (i + 1)} for i, p in enumerate(params.values())]
    missed = optim.NAdam(tensors, 0.1)
    tensors[0].grad = torch.ones_like(tensors[0])
    missed.step()  # of one parameter alone
    for optimizer, overrides in [
        (optim.NAdam(both), {}),
        (optim.NAdam(tensors), {"lr": lambda meta, step: {"w": 0.1, "b": 0.2}}),
        (missed, {}),
        (Lion(tensors), {}),
        (optim.Muon([nn.Parameter(randn(2, 2)), nn.Parameter(randn(2, 2))]), {}),
    ]:
        held = [p for group in optimizer.param_groups for p in group["params"]]
        inner: Any = ms.optimizers.from_torch(optimizer, held if held[0] is not tensors[0] else params, **overrides)
        assert inner.of_one_vector(held) is None, optimizer


def test_no_gradient_at_all_leaves_the_derivative_finite() -> None:
    for name, (kind, options) in TRACED.items():
        start = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        problem = ms.Problem(
            lambda meta, task: meta,
            ms.every_window(lambda p, meta, batch: (p["x"][0] - 1).square()),
            lambda p, meta, task: (p["x"] - 2).square().sum(),
        )
        inner = ms.optimizers.from_torch(kind([start], **options), {"x": start})
        found = ms.MetaGradient(problem, ms.MAML(), inner, steps=2)(
            {"x": start}, [ms.Task(torch.ones(1), torch.ones(1))]
        )
        assert found.grad["x"].isfinite().all(), name


LEARNED: dict[str, tuple[str, str, float]] = {
    "lr": ("nadam", "lr", 0.1), "lr, amsgrad": ("adam amsgrad", "lr", 0.1), "beta": ("nadam", "betas[0]", 0.8),
    "second beta": ("adamax", "betas[1]", 0.9), "eps": ("adadelta", "eps", 0.1),
    "decay": ("radam", "weight_decay", 0.1),
    "centered": ("rmsprop centered", "alpha", 0.8), "momentum": ("sgd nesterov", "momentum", 0.8),
    "lr decay": ("adagrad", "lr_decay", 0.2), "power": ("asgd", "alpha", 0.7), "of ours": ("adam", "lr", 0.1),
    "beta of ours": ("adam", "betas[1]", 0.9),
}  # fmt: skip


@pytest.fixture
def _in_double() -> Iterator[None]:
    """torch.optim keeps ASGD's rate and NAdam's products of betas in the default precision"""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("_in_double")
@pytest.mark.parametrize("learned", LEARNED)
def test_an_option_can_be_learned(learned: str) -> None:
    name, option, value = LEARNED[learned]
    kind, options = (TRACED | OURS)[name]
    problem, _, tasks = case("meta_network")
    params = {"w": nn.Parameter(randn(4, 5)), "v": nn.Parameter(randn(5, 2))}

    def rate(meta: Any, step: Any) -> Tensor:
        assert isinstance(step, int)
        return meta["rate"]  # type: ignore[no-any-return]

    def loss(p: Any, meta: Any, batch: Any) -> Tensor:
        x, y = batch
        return (torch.tanh(x @ p["w"]) @ p["v"] - y).square().mean()

    given = {option: rate} if "[" not in option else {"betas": (rate, 0.99) if "0" in option else (0.9, rate)}
    inner = ms.optimizers.from_torch(kind(params.values(), **options), params, **given)
    problem = ms.Problem(problem.start, ms.every_window(loss), lambda p, meta, task: loss(p, meta, task.query))
    gradient = ms.MetaGradient(problem, ms.MAML(), inner, steps=8)
    meta = {"rate": torch.tensor(value, dtype=torch.float64)}
    after, before = (gradient.judge({"rate": meta["rate"] + by}, tasks).loss for by in (1e-6, -1e-6))
    found = gradient(meta, tasks).grad["rate"]
    assert found.abs() > 1e-7
    torch.testing.assert_close(found, (after - before) / 2e-6, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", ["nadam", "adam", "sgd maximize"])
def test_an_option_in_any_form(name: str) -> None:
    kind, options = (TRACED | OURS)[name]
    params = parameters()
    start = values(params)
    made = kind([{"params": [params["w"]], **options, "lr": 0.3}, {"params": [params["b"]], **options, "lr": 0.2}])
    tree = {"w": 0.3, "b": torch.tensor(0.2, dtype=torch.float64)}
    forms = [tree, lambda meta, step: tree, {"w": torch.full((3, 2), 0.3, dtype=torch.float64), "b": 0.2}]
    for form in forms:
        for name_, p in params.items():
            p.data.copy_(start[name_])
        optimizer = kind([dict(group, lr=rate) for group, rate in zip(made.param_groups, (0.3, 0.2), strict=True)])
        plain = kind(params.values(), **options)
        follow(ms.optimizers.from_torch(plain, params, lr=form), optimizer, params, steps=4)


def test_learned_rates_go_into_any_optimizer() -> None:
    problem, meta, tasks = case("regression")
    for method in (ms.MetaSGD(), ms.methods.MAMLPP()):
        gradient = ms.MetaGradient(problem, method, optim.NAdam(problem.made_of.module.parameters(), 0.05), steps=3)
        both = gradient.init(meta)
        assert relative_error(gradient(both, tasks).grad, by_autograd(gradient, both, tasks).grad) < 1e-12
        assert any(leaf.any() for leaf in tree_leaves(gradient(both, tasks).grad["rates"]))


def test_parameters_of_one_shape_have_rates_of_their_own() -> None:
    params = {str(i): nn.Parameter(randn(3)) for i in range(6)}
    rates = {name: 0.05 * (i + 1) for i, name in enumerate(params)}
    optimizer = optim.NAdam([{"params": [params[name]], "lr": rate} for name, rate in rates.items()])
    inner = ms.optimizers.from_torch(optim.NAdam(params.values()), params, lr=rates)
    follow(inner, optimizer, params)
    assert traces(inner) <= 2


def test_clips_the_gradient_of_any_optimizer() -> None:
    problem, meta, tasks = case("regression")
    unnamed = ms.optimizers.from_torch(optim.NAdam(problem.made_of.module.parameters(), 0.05))
    gradient = ms.MetaGradient(problem, ms.MAML(), ms.optimizers.clipped(unnamed, norm=0.05), steps=3)
    assert repr(gradient.inner) == "clipped(from_torch(NAdam(lr=0.05)), norm=0.05)"
    found = gradient(meta, tasks)
    assert relative_error(found.grad, by_autograd(gradient, meta, tasks).grad) < 1e-12
    assert gradient == ms.MetaGradient(problem, ms.MAML(), gradient.inner, steps=3)


def test_a_head_is_adapted_alone() -> None:
    problem, meta, tasks = case("regression")
    optimizer = optim.NAdam(problem.made_of.module.parameters(), 0.05)
    gradient = ms.MetaGradient(problem, ms.methods.ANIL(head="2."), optimizer, steps=3)
    assert relative_error(gradient(meta, tasks).grad, by_autograd(gradient, meta, tasks).grad) < 1e-12


@pytest.mark.filterwarnings("ignore:the meta-gradient is exactly 0")
def test_an_inner_loop_goes_on_from_a_kept_state() -> None:
    problem, meta, tasks = case("regression")
    net = problem.made_of.module
    whole = ms.MetaGradient(problem, ms.MAML(), optim.NAdam(net.parameters(), 0.05), steps=6)(
        meta, tasks, keep="params"
    )
    half = ms.MetaGradient(problem, ms.MAML(), optim.NAdam(net.parameters(), 0.05), steps=3)
    kept = half(meta, tasks, keep="state").state
    fresh = ms.MetaGradient(
        problem, ms.MAML(), optim.NAdam(net.parameters(), 0.05), steps=3
    )  # it has traced nothing yet
    assert relative_error(fresh(meta, tasks, keep="params", start=kept).state, whole.state) < 1e-12


# ---- strangers


class Lion(torch.optim.Optimizer):
    """A third party's: sign of an interpolation, decoupled weight decay"""

    def __init__(self, params: Any, lr: float = 1e-2, betas: Any = (0.9, 0.99), weight_decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def rate(self, group: Any, state: Any) -> Any:
        return group["lr"]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros_like(p)
                    state["step"] = 0
                state["step"] += 1
                rate = self.rate(group, state)
                p.data.mul_(1 - rate * group["weight_decay"])
                update = state["average"].clone().mul_(group["betas"][0]).add(p.grad, alpha=1 - group["betas"][0])
                p.add_(torch.tanh(100 * update), alpha=-rate)
                state["average"].mul_(group["betas"][1]).add_(p.grad, alpha=1 - group["betas"][1])


class Warming(Lion):
    def rate(self, group: Any, state: Any) -> Any:
        return group["lr"] * min(1.0, state["step"] / 4)


class Scaled(Lion):
    def rate(self, group: Any, state: Any) -> Any:
        return group["lr"] * state.setdefault("scale", 1.0)


class Counting(Lion):
    """It counts outside of its state"""

    made = 0

    def rate(self, group: Any, state: Any) -> Any:
        self.made += 1
        return group["lr"] / self.made


class Rooted(Lion):
    def rate(self, group: Any, state: Any) -> Any:
        return group["lr"] / math.sqrt(state["step"])


class RootedRate(Lion):
    def rate(self, group: Any, state: Any) -> Any:
        return math.sqrt(group["lr"])


class Noisy(Lion):
    def rate(self, group: Any, state: Any) -> Any:
        return group["lr"] * (1 + 0.1 * torch.randn(()))


class Deciding(Lion):
    def rate(self, group: Any, state: Any) -> Any:
        return group["lr"] * (2 if state["average"].norm() > 1 else 1)


class Remembering(Lion):
    def rate(self, group: Any, state: Any) -> Any:
        state["rate"] = 0.9 * state.get("rate", group["lr"])
        return state["rate"]


class Coupled(Lion):
    """One parameter's step depends on another's gradient"""

    def rate(self, group: Any, state: Any) -> Any:
        return group["lr"] / torch.stack([p.grad.norm() for p in group["params"]]).norm()


class Beginning(optim.Adam):
    """Code of torch.optim's step, replaced"""

    def _init_group(self, group: Any, *others: Any) -> Any:
        for p in group["params"]:
            p.grad = 2 * p.grad + 0.1
        return super()._init_group(group, *others)


class Wrapping(Lion):
    """Another optimizer moves the parameters"""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.inside = optim.SGD(self.param_groups, lr=0.1)

    def step(self, closure: Any = None) -> None:
        self.inside.step()


class Whole(Lion):
    def rate(self, group: Any, state: Any) -> Any:
        state["steps"] = state.get("steps", torch.zeros((), dtype=torch.int64)) + 1
        return group["lr"]


class Preferring(optim.Adam):
    """torch.optim's code with another default, and nothing more"""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, lr=lr)


class Doubling(optim.Adam):
    """It does something of its own, and then what Adam does"""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.add_(p, alpha=0.5)
        super().step()


@pytest.mark.parametrize("kind", [Lion, Warming, Doubling])
def test_a_third_partys_optimizer(kind: Any) -> None:
    params = parameters()
    optimizer = kind(params.values())
    inner = ms.optimizers.from_torch(optimizer, params)
    follow(inner, optimizer, params)
    assert traces(inner) <= 3
    problem, meta, tasks = case("regression")
    gradient = ms.MetaGradient(problem, ms.MAML(), kind(problem.made_of.module.parameters()), steps=6)
    direction = map_tree(torch.sin, meta)
    after, before = (gradient.judge(along(meta, direction, by), tasks).loss for by in (1e-6, -1e-6))
    slope = sum((gradient(meta, tasks).grad[n] * d).sum() for n, d in direction.items())
    torch.testing.assert_close(slope, (after - before) / 2e-6, rtol=1e-5, atol=1e-8)
    learned = ms.optimizers.from_torch(kind(params.values()), params, lr=lambda meta, step: meta)
    learned.advance(learned.init(values(params)), gradient_of_all(params), torch.tensor(0.1), 2)


def test_each_parameter_keeps_its_own_constants() -> None:
    params = {name: nn.Parameter(randn(3)) for name in "ab"}
    optimizer = Scaled(params.values())
    real_step(optimizer, params, gradient(params, 0))
    optimizer.state[params["b"]]["scale"] = 2.0
    follow(ms.optimizers.from_torch(optimizer, params), optimizer, params)


def gradient_of_all(params: Params) -> Any:
    return gradient(params, 0)


REFUSED: dict[Any, str] = {
    Counting: "Counting cannot be an inner optimizer: its trace differs from its own steps by .* after 1 step, so",
    Rooted: "Rooted cannot be an inner optimizer: it takes its count of steps or a rate out of the arithmetic",
    Coupled: "Coupled cannot be an inner optimizer: its trace differs from its own steps",
    Noisy: "it draws random numbers",
    Deciding: "it decides by the values of tensors",
    Remembering: "its state of a parameter holds 'rate', a number that changes",
    Whole: "its state of a parameter holds 'steps', a tensor of torch.int64",
    Beginning: "Beginning cannot be an inner optimizer: its trace differs from its own steps",
    Wrapping: "Wrapping cannot be an inner optimizer: its trace differs from its own steps",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_stranger_that_would_be_wrong_is_refused(kind: Any) -> None:
    params = parameters()
    with pytest.raises(ms.MetastepError, match=REFUSED[kind]):
        ms.optimizers.from_torch(kind(params.values()), params)


def test_a_subclass_with_another_default_is_torchs() -> None:
    params = parameters()
    assert ms.optimizers.from_torch(Preferring(params.values()), params) == ms.Adam(0.05)


def test_gradients_that_an_optimizer_writes_into_stay_as_they_are() -> None:
    params, grads = parameters(), gradient(parameters(), 0)
    inner = ms.optimizers.from_torch(Doubling(params.values()), params)
    inner.advance(inner.init(values(params)), grads, None, 2)
    assert relative_error(grads, gradient(parameters(), 0)) == 0


@pytest.mark.parametrize("rate", [lambda meta, step: meta, lambda meta, step: 0.1 / (step + 1)])
def test_a_rate_that_a_trace_would_freeze_is_refused(rate: Any) -> None:
    params = parameters()
    inner = ms.optimizers.from_torch(RootedRate(params.values()), params, lr=rate)
    with pytest.raises(ms.MetastepError, match=r"out of the arithmetic, as math.sqrt\(…\) does"):
        inner.advance(inner.init(values(params)), gradient(params, 0), torch.tensor(0.1), 2)


def test_a_refused_optimizer_is_as_it_was() -> None:
    params = parameters()
    for kind in (Counting, Wrapping):
        optimizer, before = kind(params.values()), values(params)
        lr_scheduler.StepLR(optimizer, 1)  # it replaces the step by one that knows the original
        for p in params.values():
            p.grad = torch.ones_like(p)
        with pytest.raises(ms.MetastepError, match="differs"):
            ms.optimizers.from_torch(optimizer, params)
        assert relative_error(values(params), before) == 0
        assert optimizer.made == 0 if kind is Counting else not optimizer.inside.state
        assert not optimizer.state


# ---- Muon and those that cannot be


def test_muon_has_its_states_and_no_derivative() -> None:
    params = {"w": nn.Parameter(randn(4, 3))}
    optimizer = optim.Muon(params.values(), lr=0.1)
    follow(ms.optimizers.from_torch(optimizer, params), optimizer, params)
    problem = ms.Problem(
        lambda meta, task: meta,
        ms.every_window(lambda p, meta, b: p["w"].sin().sum()),
        lambda p, meta, t: p["w"].cos().sum(),
    )
    inner, meta = ms.optimizers.from_torch(optim.Muon(params.values(), lr=0.1), params), values(params)
    task = ms.Task(torch.ones(2, 1), torch.ones(2, 1))
    for chunk_size in (None, 1):
        assert ms.MetaGradient(problem, ms.FOMAML(), inner, steps=3, chunk_size=chunk_size)(meta, task).grad["w"].any()
        with pytest.raises(ms.MetastepError, match=r"Muon calculates its step in half precision.*ms.FOMAML\(\)"):
            ms.MetaGradient(problem, ms.MAML(), inner, steps=3, chunk_size=chunk_size)(meta, task)


@pytest.mark.parametrize(
    ("kind", "said"), [(optim.Adafactor, "size of φ"), (optim.LBFGS, "several"), (optim.SparseAdam, "sparse")]
)
def test_what_cannot_be_is_refused_by_name(kind: Any, said: str) -> None:
    with pytest.raises(ms.MetastepError, match=f"{kind.__name__} cannot be an inner optimizer: it .*{said}.*Use ms"):
        ms.optimizers.from_torch(kind([nn.Parameter(torch.ones(2))]))


def test_hooks_are_refused() -> None:
    optimizer = optim.NAdam([nn.Parameter(torch.ones(2))])
    optimizer.register_step_pre_hook(lambda *args: None)
    with pytest.raises(ms.MetastepError, match="NAdam has hooks on its steps"):
        ms.optimizers.from_torch(optimizer)


# ---- names


def test_a_metagradient_names_the_parameters() -> None:
    problem, meta, tasks = case("regression")
    net = problem.made_of.module
    expected = ms.MetaGradient(problem, ms.MAML(), optim.NAdam(net.parameters(), 0.05), steps=3)(meta, tasks).grad
    unnamed = ms.optimizers.from_torch(optim.NAdam(net.parameters(), 0.1), lr=lambda meta, step: 0.05)
    for inner in (
        unnamed,
        optim.NAdam(net.named_parameters(), 0.05),
        ms.optimizers.from_torch(optim.NAdam(net.parameters(), 0.05), net),
    ):
        assert relative_error(ms.MetaGradient(problem, ms.MAML(), inner, steps=3)(meta, tasks).grad, expected) < 1e-14
    adam = ms.MetaGradient(problem, ms.MAML(), optim.Adam(net.parameters(), 0.05), steps=3)
    assert adam.inner == ms.Adam(0.05)
    functions = ms.Problem(problem.start, problem.windows, problem.outer_loss)  # no module to be seen
    by_order = ms.MetaGradient(functions, ms.MAML(), optim.NAdam(net.parameters(), 0.05), steps=3)
    assert relative_error(by_order(meta, tasks).grad, expected) < 1e-14
    part = ms.MetaGradient(functions, ms.MAML(), optim.NAdam(net[2].parameters(), 0.05), steps=3)
    with pytest.raises(ms.MetastepError, match=r"does not say which of its parameters is which of φ. Name them"):
        part(meta, tasks)


def test_parameters_of_something_else_are_refused() -> None:
    problem, meta, tasks = case("regression")
    other = nn.Linear(2, 1)
    with pytest.raises(ms.MetastepError, match="NAdam holds none of these parameters"):
        ms.MetaGradient(problem, ms.MAML(), optim.NAdam(other.parameters()), steps=1)
    named = ms.optimizers.from_torch(optim.NAdam(other.parameters()), other)
    with pytest.raises(ms.MetastepError, match="no parameter of φ: its parameters are 'weight', 'bias', those of φ"):
        ms.MetaGradient(problem, ms.MAML(), named, steps=1)(meta, tasks)


def test_options_that_it_does_not_have_are_refused() -> None:
    params = parameters()
    for kind in (optim.NAdam, optim.Adam):
        with pytest.raises(
            ms.MetastepError, match=rf"{kind.__name__} has no number 'weigth_decay'.*Did you mean 'weight_decay'"
        ):
            ms.optimizers.from_torch(kind(params.values()), params, weigth_decay=0.1)
        with pytest.raises(ms.MetastepError, match=r"lr = -1\.0 must be a number that is at least 0"):
            ms.optimizers.from_torch(kind(params.values()), params, lr=-1.0)
    optimizer = optim.NAdam(params.values())
    with pytest.raises(ms.MetastepError, match="lr is given, and the scheduler changes it too"):
        ms.optimizers.from_torch(optimizer, params, lr_scheduler.StepLR(optimizer, 1), lr=0.1)


def rate_of_a_module(meta: Any, step: Any) -> float:
    return 0.1


def test_it_pickles_or_says_what_does_not() -> None:
    params = parameters()
    inner = ms.optimizers.from_torch(optim.NAdam(params.values()), params, lr=rate_of_a_module)
    assert repr(pickle.loads(pickle.dumps(inner))) == repr(inner) == "from_torch(NAdam(lr=rate_of_a_module))"
    inner = ms.optimizers.from_torch(optim.NAdam(params.values()), params, lr=lambda meta, step: 0.1)
    with pytest.raises(ms.MetastepError, match=r"the overrides of this TorchOptimizer cannot be pickled .*lambda"):
        pickle.dumps(inner)


def test_weight_decay_is_seen_by_an_implicit_method() -> None:
    problem, _, _ = case("regression")
    optimizer = optim.NAdam(problem.made_of.module.parameters(), weight_decay=0.1)
    with pytest.raises(ms.MetastepError, match=r"weight_decay = 0.1 of the inner optimizer is missing"):
        ms.MetaGradient(problem, ms.IMAML(), optimizer, steps=1)
