"""A warm-up and a ramp of the inner rate are, update by update, the meta-gradients that one would write for it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import metastep as ms
from metastep.core.trees import tree_leaves
from metastep.errors import MetastepError
from metastep.step import captured_update, update
from metastep.step.beginning import Beginning
from metastep.step.capture import Captured
from tests.core.helpers import relative_error
from tests.step.compiled.helpers import compiling
from tests.step.helpers import gradient_of, some_tasks, tanh_net, values_of

BATCHES = [some_tasks(seed) for seed in range(7)]
CPU = torch.device("cpu")
WINDOWED = {"maml": ms.MAML(), "windows": ms.MultiStep(window=[3, 1]), "truncated": ms.methods.Truncated(1, window=2)}


def begun(gradient: ms.MetaGradient, net: Any, **options: Any) -> ms.MetaStep:
    meta = gradient.init(net)
    return ms.MetaStep(gradient, meta, torch.optim.Adam(tree_leaves(meta), 0.01), **options)


def written_out(net: nn.Module, method: ms.methods.Method, warmup: int, ramp: int) -> None:
    """What seven updates with a beginning are"""
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for k, tasks in enumerate(BATCHES):
        now = ms.FOMAML(window=getattr(method, "window", 1)) if k < warmup else method
        inner = ms.SGD(0.1 * min(1.0, (k + 1) / max(ramp, 1)), momentum=0.9)
        ms.MetaStep(ms.MetaGradient(ms.few_shot(net, F.mse_loss), now, inner, steps=4), net, optimizer)(tasks)


@pytest.mark.parametrize(("warmup", "ramp"), [(3, 0), (0, 4), (2, 4), (4, 2)])
@pytest.mark.parametrize("method", WINDOWED)
def test_it_is_what_one_would_write(method: str, warmup: int, ramp: int) -> None:
    net, other = tanh_net(), tanh_net()
    gradient = ms.MetaGradient(ms.few_shot(net, F.mse_loss), WINDOWED[method], ms.SGD(0.1, momentum=0.9), steps=4)
    step = begun(gradient, net, warmup=warmup, ramp=ramp)
    for tasks in BATCHES:
        step(tasks)
    written_out(other, WINDOWED[method], warmup, ramp)
    assert relative_error(values_of(net), values_of(other)) < 1e-12


INNER: dict[str, Callable[[nn.Module], Any]] = {
    "adam": lambda net: ms.Adam(0.01),
    "clipped": lambda net: ms.optimizers.clipped(ms.SGD(0.1), norm=1.0),
    "of torch": lambda net: torch.optim.NAdam(net.parameters(), 0.01),
}


@pytest.mark.parametrize("inner", INNER)
def test_any_inner_optimizer_has_a_ramp(inner: str) -> None:
    net = tanh_net()
    whole = ms.MetaGradient(ms.few_shot(net, F.mse_loss), ms.MAML(), INNER[inner](net), steps=3)
    half = ms.MetaGradient(whole.problem, ms.MAML(), with_half(whole.inner), steps=3)
    beginning = Beginning(whole, 0, 2, CPU)
    assert relative_error(beginning(0)(net, BATCHES[0]).grad, half(net, BATCHES[0]).grad) < 1e-12
    assert beginning(2) is whole


def with_half(inner: Any) -> Any:
    from metastep.core.entrywise import with_lr

    return with_lr(inner, inner.lr / 2)


@pytest.mark.parametrize("method", [ms.MetaSGD(window=2), ms.methods.MAMLPP(window=2)])
def test_learned_rates_warm_up_as_they_are(method: Any) -> None:
    net = tanh_net()
    gradient = gradient_of(net, method)
    step = begun(gradient, net, warmup=2)
    before = [x.detach().clone() for x in tree_leaves(step.meta["rates"])]  # type: ignore[index,call-overload]
    for tasks in BATCHES[:2]:
        step(tasks)
    for x, y in zip(tree_leaves(step.meta["rates"]), before, strict=True):  # type: ignore[index,call-overload]
        assert torch.equal(x, y)
    step(BATCHES[2])
    assert not torch.equal(tree_leaves(step.meta["rates"])[0], before[0])  # type: ignore[index,call-overload]


def test_a_head_alone_warms_up() -> None:
    net = tanh_net()
    beginning = Beginning(gradient_of(net, ms.methods.ANIL(head="2", window=2)), 1, 0, CPU)
    expected = ms.MetaGradient(
        ms.problems.adapt_only(ms.few_shot(net, F.mse_loss), "2"), ms.FOMAML(window=2), ms.SGD(0.1), steps=4
    )
    assert relative_error(beginning(0)(net, BATCHES[0]).grad, expected(net, BATCHES[0]).grad) < 1e-12


@pytest.mark.parametrize("warmup", [0, 2, 5])
def test_it_resumes_bit_for_bit(warmup: int) -> None:
    net, other = tanh_net(), tanh_net(3)
    step = begun(gradient_of(net), net, warmup=warmup, ramp=4)
    for tasks in BATCHES[:3]:
        step(tasks)
    state = step.state_dict()
    resumed = begun(gradient_of(other), other, warmup=warmup, ramp=4)
    resumed.load_state_dict(state)
    for tasks in BATCHES[3:]:
        step(tasks)
        resumed(tasks)
    assert all(torch.equal(x, y) for x, y in zip(net.parameters(), other.parameters(), strict=True))


def test_a_recording_serves_the_whole_ramp(monkeypatch: pytest.MonkeyPatch) -> None:
    recordings: list[int] = []

    def again(run: Callable[[], None]) -> Callable[[], None]:
        recordings.append(1)
        run()
        return run

    eager_net, net = tanh_net(), tanh_net()
    eager = begun(gradient_of(eager_net), eager_net, warmup=2, ramp=5)
    monkeypatch.setattr(update, "why_not_captured", lambda *of: None)
    monkeypatch.setattr(captured_update, "unit", lambda step, device: Captured(step, again))
    step = begun(gradient_of(net), net, warmup=2, ramp=5)
    for tasks in BATCHES:
        step(tasks)
        eager(tasks)
        assert relative_error(values_of(net), values_of(eager_net)) < 1e-9
    assert len(recordings) == 3  # warm-up, ramp, and what comes after


@pytest.mark.compiled
def test_a_plan_serves_the_whole_ramp() -> None:
    net = tanh_net()
    gradient = compiling(ms.few_shot(net, F.mse_loss), ms.MultiStep(window=2), ms.SGD(0.1, momentum=0.9), steps=4)
    beginning = Beginning(gradient, 0, 5, CPU)
    ramped = beginning(0)
    compiled = compiling(ramped.problem, ramped.method, ramped.inner, steps=4)
    vars(ramped)["compiled"] = compiled.compiled
    for k, tasks in enumerate(BATCHES[:5]):
        plain = ms.MetaGradient(gradient.problem, gradient.method, ms.SGD(0.1 * (k + 1) / 5, momentum=0.9), steps=4)
        assert relative_error(beginning(k)(net, tasks).grad, plain(net, tasks).grad) < 1e-9
        assert ramped.path.startswith("compiled")
    assert len(ramped.compiled._plans) == 1


def test_what_has_no_such_beginning_is_refused() -> None:
    net = tanh_net()
    for method in (ms.FOMAML(), ms.Reptile(), ms.IMAML()):
        with pytest.raises(MetastepError, match=r"no sweep that first order could stand in for. Leave warmup out"):
            begun(gradient_of(net, method), net, warmup=1)
        begun(gradient_of(net, method), net, ramp=2)(BATCHES[0])
    with pytest.raises(MetastepError, match=r"learns its inner rates. Leave ramp out, and start from a lower rate"):
        begun(gradient_of(net, ms.MetaSGD()), net, ramp=1)
    scheduled = ms.MetaGradient(ms.few_shot(net, F.mse_loss), ms.MAML(), ms.SGD(lambda meta, step: 0.1), steps=2)
    with pytest.raises(MetastepError, match=r"has no rate lr that is one number. Leave ramp out"):
        begun(scheduled, net, ramp=1)
    for wrong in (-1, 2.0, True):
        with pytest.raises(MetastepError, match="must be a whole number of updates that is at least 0"):
            begun(gradient_of(net), net, warmup=wrong)
