"""`MetaStep` does what the loop by hand does, does nothing if it cannot, and continues as if never interrupted."""

import io
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, NAdam, Optimizer, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau, SequentialLR, StepLR
from torch.utils._pytree import tree_flatten

import metastep as ms
from metastep.errors import MetastepError, NonFiniteError
from metastep.step.captured_update import why_not_functional
from tests.core.helpers import relative_error
from tests.step.helpers import each, gradient_of, grads_of, loss_by_hand, some_tasks, tanh_net, values_of

Params = Iterable[Tensor]
BATCHES = [some_tasks(seed) for seed in range(5)]
WITH_NAN = ms.Task(BATCHES[1].support, (BATCHES[1].query[0], BATCHES[1].query[1] * torch.nan))


def momentum(params: Params) -> Optimizer:
    return SGD(params, 0.1, momentum=0.9)


def in_groups(params: Params) -> Optimizer:
    first, *others = params
    return AdamW([{"params": [first], "lr": 0.1}, {"params": others, "weight_decay": 0.5}], 1e-2)


def made(
    optimizer: Callable[[Params], Optimizer] = momentum,
    scheduler: Callable[[Optimizer], Any] | None = None,
    seed: int = 0,
    **options: Any,
) -> tuple[nn.Sequential, ms.MetaStep]:
    net = tanh_net(seed)
    moved = optimizer(net.parameters())
    options["scheduler"] = scheduler and scheduler(moved)
    return net, ms.MetaStep(gradient_of(net), net, moved, **options)


def by_hand(
    optimizer: Callable[[Params], Optimizer],
    scheduler: Callable[[Optimizer], Any] | None = None,
    clip: Callable[[Params], Any] = lambda params: None,
) -> nn.Sequential:
    net = tanh_net()
    moved = optimizer(net.parameters())
    schedule = scheduler and scheduler(moved)
    for tasks in BATCHES:
        moved.zero_grad()
        loss = loss_by_hand(net, dict(net.named_parameters()), each(tasks))
        loss.backward()
        clip(net.parameters())
        moved.step()
        if schedule:
            schedule.step(*([loss.detach()] if isinstance(schedule, ReduceLROnPlateau) else []))
    return net


@pytest.mark.parametrize(
    "optimizer",
    [
        momentum,
        in_groups,
        lambda p: Adam(p, 0.01, amsgrad=True),
        lambda p: RMSprop(p, 0.01),
        lambda p: NAdam(p, 0.01),
    ],
    ids=["momentum", "groups", "amsgrad", "rmsprop", "nadam"],
)
def test_any_optimizer_moves_as_in_a_loop_by_hand(optimizer: Callable[[Params], Optimizer]) -> None:
    net, step = made(optimizer)
    for tasks in BATCHES:
        step(tasks)
    assert relative_error(values_of(net), values_of(by_hand(optimizer))) < 1e-12


@pytest.mark.parametrize(
    ("options", "clip"),
    [
        ({"clip": 0.05}, lambda params: nn.utils.clip_grad_norm_(params, 0.05)),
        ({"clip": 1e6}, lambda params: None),
        ({"clip_value": 0.05}, lambda params: nn.utils.clip_grad_value_(params, 0.05)),
    ],
    ids=["norm", "a norm that nothing reaches", "value"],
)
def test_clipping(options: dict[str, float], clip: Callable[[Params], Any]) -> None:
    net, step = made(**options)
    for tasks in BATCHES:
        step(tasks)
    assert relative_error(values_of(net), values_of(by_hand(momentum, clip=clip))) < 1e-12


SCHEDULES: dict[str, Callable[[Optimizer], Any]] = {
    "step": lambda o: StepLR(o, 2, 0.5),
    "cosine": lambda o: CosineAnnealingLR(o, 5),
    "one cycle": lambda o: OneCycleLR(o, 0.1, total_steps=8),
    "one after the other": lambda o: SequentialLR(o, [StepLR(o, 1, 0.1), StepLR(o, 1, 0.5)], [2]),
    "plateau": lambda o: ReduceLROnPlateau(o, patience=0, threshold=10.0),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_scheduler_steps_after_every_update(name: str) -> None:
    net, step = made(scheduler=SCHEDULES[name])
    rate = step.optimizer.param_groups[0]["lr"]
    for tasks in BATCHES:
        step(tasks)
    assert step.optimizer.param_groups[0]["lr"] != rate
    assert relative_error(values_of(net), values_of(by_hand(momentum, SCHEDULES[name]))) < 1e-12


def test_stacked_tasks_and_a_list_of_them_make_the_same_update() -> None:
    (one, step), (other, again) = made(), made()
    a, b = step(BATCHES[0]), again(each(BATCHES[0]))
    assert relative_error(values_of(one), values_of(other)) < 1e-14
    assert torch.equal(a.loss, b.loss)
    assert a.metrics["loss"].shape == (5,)


def test_frozen_parts_of_theta_stay_and_do_not_count_in_the_norm() -> None:
    net = tanh_net()
    meta = {name: p.detach().clone().requires_grad_(name != "0.bias") for name, p in net.named_parameters()}
    learned = [p for p in meta.values() if p.requires_grad]
    before = meta["0.bias"].clone()
    start = {name: p.detach().clone() for name, p in meta.items()}
    found = ms.MetaStep(gradient_of(net), meta, SGD(learned, 1.0, weight_decay=0.1), clip=0.01)(BATCHES[0])
    assert torch.equal(meta["0.bias"], before)
    for p, name in zip(learned, (n for n, p in meta.items() if p.requires_grad), strict=True):
        p.grad = found.grad[name]
        assert not torch.equal(p, start[name])
    total = nn.utils.clip_grad_norm_(learned, 0.01)
    assert total > 0.01
    for name, p in meta.items():
        if p.requires_grad:
            torch.testing.assert_close(start[name] - p.detach(), p.grad + 0.1 * start[name])


def test_one_tensor_in_two_places_of_theta() -> None:
    problem = ms.Problem(
        lambda meta, task: torch.zeros((), dtype=torch.float64),
        ms.every_window(lambda p, meta, batch: (p - batch).square() * meta["a"].exp() + meta["b"] * p.square()),
        lambda p, meta, task: (p - task.query).square(),
    )
    gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=0.1), steps=3)
    tasks = ms.Task(torch.linspace(0, 1, 4).double(), torch.linspace(1, 2, 4).double())
    tied = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    apart = gradient({"a": tied, "b": tied}, tasks).grad
    ms.MetaStep(gradient, {"a": tied, "b": tied}, SGD([tied], 1.0))(tasks)
    torch.testing.assert_close(tied.detach(), 0.3 - apart["a"] - apart["b"])
    assert why_not_functional({"a": tied, "b": tied}, SGD([tied], 1.0)) == "a tensor stands in several places of meta"


def test_what_the_optimizer_holds_but_cannot_move_is_told() -> None:
    """As a learned rate that was made without requires_grad"""
    net = tanh_net()
    meta = {"params": ms.parameters(net), "rates": torch.tensor(0.1, dtype=torch.float64)}
    learned = ms.problems.accept_rates(ms.few_shot(net, nn.functional.mse_loss))
    gradient = ms.MetaGradient(learned, ms.MAML(), ms.SGD(lr=lambda meta, step: meta["rates"]), steps=2)
    with pytest.warns(UserWarning, match=r"rates of meta does not require grad, so the optimizer leaves it") as told:
        ms.MetaStep(gradient, meta, SGD(ms.trees.leaves(meta), 0.1))(BATCHES[0])
    assert told[0].filename == __file__
    assert meta["rates"] == 0.1
    meta["rates"].requires_grad_()
    ms.MetaStep(gradient, meta, SGD(ms.trees.leaves(meta), 0.1))(BATCHES[0])
    assert meta["rates"] != 0.1


def test_gradients_that_the_user_holds_are_left_alone() -> None:
    net, step = made()
    net[0].weight.grad = torch.ones(3, 2, dtype=torch.float64)
    step(BATCHES[0])
    assert grads_of(net).keys() == {"0.weight"}
    assert bool((net[0].weight.grad == 1).all())
    assert relative_error(values_of(net), values_of(after_one_update())) < 1e-14


def after_one_update() -> nn.Sequential:
    net, step = made()
    step(BATCHES[0])
    return net


def same(a: Any, b: Any) -> bool:
    (ours, spec), (theirs, others) = tree_flatten(a), tree_flatten(b)
    pairs = zip(ours, theirs, strict=True)
    return spec == others and all(torch.equal(x, y) if isinstance(x, Tensor) else x == y for x, y in pairs)


@pytest.mark.parametrize("tasks", [WITH_NAN, each(WITH_NAN)], ids=["stacked", "list"])
def test_an_update_that_is_not_finite_is_not_made(tasks: Any) -> None:
    net, step = made(lambda p: Adam(p, 0.01), SCHEDULES["step"])
    step(BATCHES[0])
    before = deepcopy((step.state_dict(), values_of(net)))
    with pytest.raises(NonFiniteError, match="update 2: task 0: all inner gradients are finite, but the outer loss"):
        step(tasks)
    assert same(before, (step.state_dict(), values_of(net)))
    assert not grads_of(net)
    step(BATCHES[1])
    net_without, without = made(lambda p: Adam(p, 0.01), SCHEDULES["step"])
    for batch in BATCHES[:2]:
        without(batch)
    assert same(values_of(net), values_of(net_without))


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", [momentum, in_groups], ids=["momentum", "groups"])
def test_a_resumed_training_is_the_uninterrupted_one_bit_for_bit(
    optimizer: Callable[[Params], Optimizer], schedule: str
) -> None:
    net, step = made(optimizer, SCHEDULES[schedule])
    for tasks in BATCHES[:2]:
        step(tasks)
    state = step.state_dict()
    saved = through_a_file(state)
    for tasks in BATCHES[2:]:
        step(tasks)
    for kept in (saved, saved, state):  # a state is a value: neither the training it is from nor one it began moves it
        other, resumed = made(optimizer, SCHEDULES[schedule], seed=3)
        resumed.load_state_dict(kept)
        assert resumed.updates == 2
        for tasks in BATCHES[2:]:
            resumed(tasks)
        assert same(resumed.state_dict(), step.state_dict())
        assert same(values_of(other), values_of(net))


def test_theta_of_a_state_goes_into_safetensors() -> None:
    _, step = made()
    step(BATCHES[0])
    state = step.state_dict()
    named = load(save({str(i): leaf for i, leaf in enumerate(state["meta"])}))
    state["meta"] = [named[str(i)] for i in range(len(named))]
    net, other = made(seed=3)
    other.load_state_dict(state)
    assert same(values_of(net), values_of(after_one_update()))


def larger() -> ms.MetaStep:
    net = nn.Linear(2, 1).double()
    return ms.MetaStep(gradient_of(net), net, momentum(net.parameters()))


@pytest.mark.parametrize(
    ("step", "state", "message"),
    [
        (larger, {}, "another θ: its tensors have other shapes or precisions"),
        (lambda: made()[1], {"scheduler": {}}, "saved with a scheduler, but this MetaStep has none"),
        (lambda: made(scheduler=SCHEDULES["step"])[1], {}, "saved without a scheduler, but this MetaStep has one"),
        (lambda: made(lambda p: Adam(p))[1], {}, "another optimizer or scheduler: Adam has no 'dampening' here"),
        (lambda: made()[1], {"meta": [torch.zeros(3, 2)]}, "shapes or precisions"),
    ],
    ids=["theta", "no scheduler", "a scheduler", "optimizer", "precision"],
)
def test_a_state_of_something_else_is_refused_and_changes_nothing(
    step: Callable[[], ms.MetaStep], state: dict[str, Any], message: str
) -> None:
    saved, other = made()[1].state_dict(), step()
    before = other.state_dict()
    with pytest.raises(MetastepError, match=message):
        other.load_state_dict({**saved, **state})
    assert same(before, other.state_dict())


@pytest.mark.parametrize("state", [{}, tanh_net().state_dict(), 3])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(MetastepError, match=r"not what MetaStep\.state_dict\(\) returned: that has meta, optimizer"):
        made()[1].load_state_dict(state)


def test_other_parameter_groups_are_refused_before_anything_is_loaded() -> None:
    net, step = made(in_groups)
    before = values_of(net)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        step.load_state_dict(made(lambda p: AdamW(p), seed=3)[1].state_dict())
    assert same(values_of(net), before)


def frozen() -> dict[str, Tensor]:
    return values_of(tanh_net())


def wrong(name: str) -> Any:
    net = tanh_net()
    gradient, optimizer, other = gradient_of(net), momentum(net.parameters()), tanh_net(1)
    more = [*net.parameters(), nn.Parameter(torch.ones(2))]
    return {
        "swapped": lambda: ms.MetaStep(net, gradient, optimizer),  # type: ignore[arg-type]
        "inner": lambda: ms.MetaStep(gradient, net, ms.SGD(0.1)),  # type: ignore[arg-type]
        "class": lambda: ms.MetaStep(gradient, net, Adam),  # type: ignore[arg-type]
        "a part": lambda: ms.MetaStep(gradient, net, Adam(net[0].parameters())),
        "another": lambda: ms.MetaStep(gradient, net, Adam(other.parameters())),
        "more": lambda: ms.MetaStep(gradient, net, Adam(more)),
        "frozen": lambda: ms.MetaStep(gradient, (meta := frozen()), SGD(meta.values(), 0.1)),
        "closure": lambda: ms.MetaStep(gradient, net, LBFGS(net.parameters())),
        "scheduler": lambda: ms.MetaStep(gradient, net, optimizer, scheduler=StepLR(momentum(other.parameters()), 1)),
        "no scheduler": lambda: ms.MetaStep(gradient, net, optimizer, scheduler=0.1),
        "both clips": lambda: ms.MetaStep(gradient, net, optimizer, clip=1.0, clip_value=1.0),
        "clip": lambda: ms.MetaStep(gradient, net, optimizer, clip=0.0),
        "no tasks": lambda: ms.MetaStep(gradient, net, optimizer)(),
        "both tasks": lambda: ms.MetaStep(gradient, net, optimizer, draw=lambda k: BATCHES[0])(BATCHES[0]),
    }[name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("swapped", r"Sequential is not a MetaGradient\. Write ms\.MetaStep\(gradient, meta, torch\.optim"),
        ("inner", "SGD is not an optimizer of torch.optim"),
        ("class", "Adam is the class. Write ms.MetaStep"),
        ("a part", r"does not hold 2\.weight, 2\.bias, which meta learns"),
        ("another", r"does not hold 0\.weight, 0\.bias, 2\.weight and 1 more"),
        ("more", "holds tensors that are not in meta"),
        ("frozen", r"nothing in meta requires grad.*gradient\.init\(…\), or call requires_grad_\(\)"),
        ("closure", r"LBFGS evaluates a closure several times.*Call optimizer\.step\(closure\) yourself"),
        ("scheduler", "the scheduler belongs to another optimizer"),
        ("no scheduler", r"scheduler = 0\.1 has no step\(\)"),
        ("both clips", "exclude each other"),
        ("clip", "clip = 0.0 must be a number that is above 0"),
        ("no tasks", r"call step\(tasks\)"),
        ("both tasks", r"call step\(\)"),
    ],
)
def test_what_cannot_be_meant_is_refused(name: str, message: str) -> None:
    with pytest.raises(MetastepError, match=message):
        wrong(name)()


def test_lbfgs_by_the_remedy_that_its_refusal_names() -> None:
    """With a line search, which evaluates the closure at several points"""
    ours, theirs = tanh_net(), tanh_net()
    gradient, losses = gradient_of(ours), list[Tensor]()
    for net, loss_of in (
        (ours, lambda: gradient.loss(ours, BATCHES[0])),
        (theirs, lambda: loss_by_hand(theirs, dict(theirs.named_parameters()), each(BATCHES[0]))),
    ):
        optimizer = LBFGS(net.parameters(), max_iter=5, line_search_fn="strong_wolfe")

        def closure(optimizer: Optimizer = optimizer, loss_of: Callable[[], Tensor] = loss_of) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of()
            loss.backward()
            return loss

        losses.append(optimizer.step(closure))  # type: ignore[arg-type]
    assert relative_error(values_of(ours), values_of(theirs)) < 1e-9
    assert gradient.judge(ours, BATCHES[0]).loss < losses[0].detach()
