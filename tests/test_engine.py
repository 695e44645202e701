"""A captured step, with a recorder that needs no GPU: what it recorded is run again on the same memory."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from metastep.engine import Captured, Record, Unit, recorded_by_cuda, unit


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_graphs_do_the_same() -> None:
    def on_gpu(record: Record | None) -> list[list[Tensor]]:
        state = Moving(*(torch.utils._pytree.tree_map(lambda t: t.cuda(), part) for part in start()))
        unit, seen = Captured(step, record) if record else Unit(step), []
        for (x, y), rate in zip(batches(), RATES, strict=True):
            state, outputs = unit(state, (x.cuda(), y.cuda()), torch.tensor(rate).cuda())
            seen.append([t.clone() for t in (state.place, state.speed["v"], state.held, outputs["push"])])
        return seen

    torch.testing.assert_close(on_gpu(recorded_by_cuda()), on_gpu(None), rtol=0, atol=0)
