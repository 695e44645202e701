"""Whether `metastep train` compiles: by the number of updates, and by what was measured."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import metastep as ms
from metastep.step.compiled import paying
from metastep.step.compiled.engine import Cost
from metastep.step.compiled.paying import decided
from tests.core.helpers import case

pytestmark = pytest.mark.compiled


@pytest.mark.parametrize(
    ("seconds", "updates", "compiles", "why"),
    [
        (0.06, 1000, True, "Compiling takes some 12 s and saves at least 40 s in 1,000 updates."),
        (0.2, 200, False, "Not compiled: compiling takes some 12 s and saves at least 8 s in 200 updates."),
        (0.06, 400, False, ""),  # 24 s altogether
        (9.0, 99, False, ""),  # too few to draw tasks for
    ],
)
def test_the_updates_decide(
    seconds: float, updates: int, compiles: bool, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paying, "_seconds", lambda *of: seconds)
    monkeypatch.setattr(ms.MetaGradient, "compile_cost", lambda *of: Cost(compiling=12.0, eager=0.06, compiled=0.02))
    given, meta, tasks = case("regression")
    gradient = ms.MetaGradient(given, ms.MAML(), ms.SGD(0.1), steps=2)
    assert decided(gradient, meta, lambda: tasks, updates) == (compiles, why)


def test_it_is_measured_and_draws_nothing() -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1)).double()
    gradient = ms.MetaGradient(ms.few_shot(net, F.mse_loss), ms.MAML(), ms.SGD(0.1), steps=2)
    tasks, before = case("regression").tasks, torch.get_rng_state()
    assert decided(gradient, net, lambda: tasks, updates=1000) == (False, "")
    assert decided(gradient, net, lambda: tasks, updates=10**7).compile
    assert torch.equal(before, torch.get_rng_state())


def test_what_cannot_be_compiled_is_told() -> None:
    given, meta, tasks = case("regression")
    gradient = ms.MetaGradient(given, ms.methods.Reptile(), ms.SGD(0.1), steps=2)
    decision = decided(gradient, meta, lambda: tasks, 10**7)
    assert decision == (
        False, "Not compiled: compile=True would compile nothing: the method is not a sweep over windows."
    )  # fmt: skip


def test_derivatives_by_hand_are_not_compiled() -> None:
    net = ms.nets.Conv4(ways=5, filters=4, size=16)
    gradient = ms.MetaGradient(ms.few_shot(net, F.cross_entropy), ms.MAML(), ms.SGD(0.1), steps=2)
    batch = torch.rand(2, 5, 1, 16, 16), torch.arange(5).repeat(2, 1)
    assert decided(gradient, net, lambda: ms.Task(batch, batch), 10**7) == (False, "")
    assert gradient.path.startswith("derivatives by hand")
