"""`MetaStep` as one unit that a GPU replays, with a recorder that needs no GPU: it does what eager updates do."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils._pytree import tree_flatten

import metastep as ms
from metastep.errors import NonFiniteError
from metastep.step import captured_update, update
from metastep.step.capture import Captured
from metastep.step.captured_update import CapturedUpdate
from tests.core.helpers import relative_error
from tests.step.helpers import each, gradient_of, some_tasks, tanh_net, values_of

BATCHES = [some_tasks(seed) for seed in range(6)]
WITH_NAN = ms.Task(BATCHES[1].support, (BATCHES[1].query[0], BATCHES[1].query[1] * torch.nan))

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "momentum": lambda params: SGD(params, 0.1, momentum=0.9),
    "adam": lambda params: Adam(params, 0.01),
}
OPTIONS: dict[str, Callable[[Optimizer], dict[str, Any]]] = {
    "plain": lambda o: {},
    "clipped": lambda o: {"clip": 0.05},
    "clipped by value": lambda o: {"clip_value": 0.05},
    "scheduled": lambda o: {"scheduler": StepLR(o, 2, 0.5)},
    "plateau": lambda o: {"scheduler": ReduceLROnPlateau(o, patience=0, threshold=10.0)},
}


def made(optimizer: str = "adam", options: str = "plain", seed: int = 0) -> tuple[nn.Module, ms.MetaStep]:
    net = tanh_net(seed)
    moved = OPTIMIZERS[optimizer](net.parameters())
    return net, ms.MetaStep(gradient_of(net), net, moved, **OPTIONS[options](moved))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU"""

    def again(run: Callable[[], None]) -> Callable[[], None]:
        run()  # as a recorder warms up
        return run

    monkeypatch.setattr(update, "why_not_captured", lambda *of: None)
    monkeypatch.setattr(captured_update, "unit", lambda step, device: Captured(step, again))


def same(a: Any, b: Any) -> bool:
    (ours, spec), (theirs, others) = tree_flatten(a), tree_flatten(b)
    pairs = zip(ours, theirs, strict=True)
    return spec == others and all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in pairs)


@pytest.mark.parametrize("listed", [False, True], ids=["stacked", "list"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_does_what_eager_updates_do(
    optimizer: str, options: str, listed: bool, request: pytest.FixtureRequest
) -> None:
    eager_net, eager = made(optimizer, options)
    request.getfixturevalue("recorded")
    net, step = made(optimizer, options)
    assert isinstance(step._update, CapturedUpdate)
    for tasks in BATCHES:
        ours, theirs = step(each(tasks) if listed else tasks), eager(tasks)
        torch.testing.assert_close(ours.loss, theirs.loss)
        assert relative_error(ours.grad, theirs.grad) < 1e-9
        assert relative_error(values_of(net), values_of(eager_net)) < 1e-9
        assert ours.metrics["loss"].shape == (5,)
    step.settle()
    assert step.optimizer.param_groups[0]["lr"] == eager.optimizer.param_groups[0]["lr"]
    states = (one.state_dict()["optimizer"]["state"].values() for one in (step, eager))
    for kept, other in zip(*states, strict=True):
        for name in kept:
            torch.testing.assert_close(kept[name], other[name], rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("options", ["plain", "scheduled"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_resumes_bit_for_bit(optimizer: str, options: str) -> None:
    net, step = made(optimizer, options)
    for tasks in BATCHES[:2]:
        step(tasks)
    state = step.state_dict()
    for tasks in BATCHES[2:]:
        step(tasks)
    other, resumed = made(optimizer, options, seed=3)
    resumed.load_state_dict(state)
    for tasks in BATCHES[2:]:
        resumed(tasks)
    assert same(values_of(net), values_of(other))
    assert same(step.state_dict(), resumed.state_dict())


@pytest.mark.usefixtures("recorded")
def test_what_changes_between_two_calls_is_seen() -> None:
    """θ that the user writes into, a rate that the user sets, and a module that is switched"""
    (net, step), (eager_net, eager) = made(), made()
    eager._update = update.EagerUpdate(eager, "to compare with")
    for k, tasks in enumerate(BATCHES):
        for one, way in ((net, step), (eager_net, eager)):
            if k == 2:
                with torch.no_grad():
                    one[0].weight.mul_(0.5)  # type: ignore[index]
            if k == 4:
                way.optimizer.param_groups[0]["lr"] = 0.05
            way(tasks)
        assert relative_error(values_of(net), values_of(eager_net)) < 1e-9


@pytest.mark.usefixtures("recorded")
def test_an_update_that_is_not_finite_is_told_at_the_next_look() -> None:
    net, step = made()
    step(BATCHES[0])
    before = values_of(net)
    step(WITH_NAN)
    step(BATCHES[2])
    assert same(values_of(net), before)  # nor is any later one made
    with pytest.raises(NonFiniteError, match="update 2: task 0: all inner gradients are finite, but the outer loss"):
        step.look()
    assert same(values_of(net), before)


@pytest.mark.usefixtures("recorded")
def test_after_the_error_an_earlier_state_goes_on() -> None:
    net, step = made("adam", "scheduled")
    step(BATCHES[0])
    state = step.state_dict()
    step(WITH_NAN)
    for look in (step.settle, step.state_dict):
        with pytest.raises(NonFiniteError, match="update 2"):
            look()
    step.load_state_dict(state)
    step(BATCHES[2])
    other, without = made("adam", "scheduled")
    without(BATCHES[0])
    without(BATCHES[2])
    assert same(step.state_dict(), without.state_dict())
    assert same(values_of(net), values_of(other))


@pytest.mark.usefixtures("recorded")
def test_a_look_comes_by_itself() -> None:
    _, step = made()
    step(WITH_NAN)
    for k in range(2, step.queued):
        step(BATCHES[k % 6])
    with pytest.raises(NonFiniteError, match="update 1: task 0"):
        step(BATCHES[0])
