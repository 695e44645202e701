"""A captured step, with a recorder that needs no GPU: what it recorded is run again on the same memory."""

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from metastep.step.capture import Captured, Record, Unit, recorded_by_cuda, unit
from metastep.step.compiler.compiling import Step


class Moving(NamedTuple):
    place: Tensor
    speed: dict[str, Tensor]
    held: Tensor


def step(state: Moving, batch: tuple[Tensor, Tensor], rate: Tensor) -> tuple[Moving, dict[str, Tensor]]:
    x, y = batch
    push = (x * state.place).sum(0) - y.sum()
    speed = 0.9 * state.speed["v"] + push
    return Moving(state.place - rate * speed, {"v": speed}, state.held), {"push": push.norm()}


def again(run: Callable[[], None]) -> Callable[[], None]:
    run()  # as a recorder warms up
    return run


def start() -> Moving:
    return Moving(torch.ones(3), {"v": torch.zeros(3)}, torch.arange(2.0))


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.rand(n, 3, generator=generator), torch.rand(n, generator=generator)) for n in (4, 4, 2, 4, 2, 4)]


def followed(unit: Unit, state: Moving, rates: list[float]) -> list[list[Tensor]]:
    seen = []
    for batch, rate in zip(batches(), rates, strict=True):
        state, outputs = unit(state, batch, torch.tensor(rate))
        seen.append([t.clone() for t in (state.place, state.speed["v"], state.held, outputs["push"])])
    return seen


RATES = [0.1, 0.1, 0.1, 0.05, 0.05, 0.01]


def test_a_captured_step_is_the_step() -> None:
    expected, got = followed(Unit(step), start(), RATES), followed(Captured(step, again), start(), RATES)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_inputs_of_another_shape_are_recorded_once() -> None:
    recorded = []

    def counting(run: Callable[[], None]) -> Callable[[], None]:
        recorded.append(run)
        return again(run)

    followed(Captured(step, counting), start(), RATES)
    assert len(recorded) == 2


def test_what_it_hands_out_can_be_changed() -> None:
    """Its tree, that is: the tensors are written over by the next call"""
    captured, state = Captured(step, again), start()
    for batch in batches():
        state, outputs = captured(state, batch, torch.tensor(0.1))
        assert outputs.pop("push") > 0


def test_it_goes_on_from_any_state() -> None:
    captured = Captured(step, again)
    followed(captured, start(), RATES)
    torch.testing.assert_close(followed(captured, start(), RATES), followed(Unit(step), start(), RATES), rtol=0, atol=0)


def test_what_goes_in_is_not_written_to() -> None:
    state, batch = start(), batches()[0]
    kept = [t.clone() for t in (*state[:1], state.speed["v"], *batch)]
    Captured(step, again)(state, batch, torch.tensor(0.1))
    torch.testing.assert_close([*state[:1], state.speed["v"], *batch], kept, rtol=0, atol=0)


def test_a_step_that_cannot_be_recorded_is_called() -> None:
    def refuse(run: Callable[[], None]) -> Callable[[], None]:
        run()
        raise RuntimeError("not permitted while capturing\nand a long story")

    captured = Captured(step, refuse)
    torch.testing.assert_close(followed(captured, start(), RATES), followed(Unit(step), start(), RATES), rtol=0, atol=0)
    assert captured.path == "called as it is: not permitted while capturing"


def out_of_memory_at(call: int) -> Record:
    calls = count(1)

    def record(run: Callable[[], None]) -> Callable[[], None]:
        run()
        torch.rand(1)
        if next(calls) == call:
            raise torch.OutOfMemoryError("out of memory")
        return run

    return record


def test_a_shape_that_cannot_be_recorded_leaves_the_state_as_it_was() -> None:
    captured, seed = Captured(step, out_of_memory_at(2)), torch.get_rng_state()
    torch.testing.assert_close(followed(captured, start(), RATES), followed(Unit(step), start(), RATES), rtol=0, atol=0)
    assert captured.path == "called as it is: out of memory"
    assert torch.equal(torch.get_rng_state(), seed)


def test_an_error_of_a_later_shape_leaves_the_state_as_it_was() -> None:
    def interrupted(run: Callable[[], None]) -> Callable[[], None]:
        again(run)
        raise KeyboardInterrupt

    captured = Captured(step, again)
    first, _, other, *_ = batches()
    state, _ = captured(start(), first, torch.tensor(0.1))
    kept, captured._record = state.place.clone(), interrupted
    with pytest.raises(KeyboardInterrupt):
        captured(state, other, torch.tensor(0.1))
    assert torch.equal(state.place, kept)


def test_an_error_of_the_step_itself_is_not_hidden() -> None:
    def wrong(state: Any, batch: Any, rate: Any) -> Any:
        raise ValueError("no such layer")

    with pytest.raises(ValueError, match="no such layer"):
        Captured(wrong, again)(start(), batches()[0], torch.tensor(0.1))


@pytest.mark.parametrize(
    ("device", "noise", "compile", "path"),
    [
        ("cpu", False, False, "called as it is"),
        ("cpu", False, True, "traced; operator by operator"),
        ("cpu", True, True, "random numbers"),
        ("cuda", True, False, "random numbers"),
    ],
)
def test_the_path_is_chosen_and_said(device: str, noise: bool, compile: bool, path: str) -> None:
    made = unit(step, torch.device(device), noise, compile)
    assert path in made.path
    assert made.notice == ("traced, which takes some seconds" if "traced" in path else "")


def stopping_at(call: int) -> Step:
    """The step, but for one call of it; a shape takes two to warm up and one to be recorded, and a replay none"""
    calls = count(1)

    def stopping(*args: Any) -> Any:
        if next(calls) == call:
            raise torch.OutOfMemoryError("out of memory")
        return step(*args)

    return stopping


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("stops_at", [0, 2, 3, 5, 6], ids=["never", "warm", "recorded", "warm again", "recorded again"])
def test_cuda_graphs_do_the_same(stops_at: int) -> None:
    def on_gpu(unit: Unit) -> list[list[Tensor]]:
        state, seen = Moving(*(torch.utils._pytree.tree_map(lambda t: t.cuda(), part) for part in start())), []
        for (x, y), rate in zip(batches(), RATES, strict=True):
            state, outputs = unit(state, (x.cuda(), y.cuda()), torch.tensor(rate).cuda())
            seen.append([t.clone() for t in (state.place, state.speed["v"], state.held, outputs["push"])])
        return seen

    found = on_gpu(Captured(stopping_at(stops_at), recorded_by_cuda()))
    torch.testing.assert_close(found, on_gpu(Unit(step)), rtol=0, atol=0)
