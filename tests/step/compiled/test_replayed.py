"""Plans that are captured: what a CUDA graph would freeze is an input of it. The recorder needs no GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Adam

import metastep as ms
from metastep.core import derivatives
from metastep.core.counting import counting
from metastep.core.trees import map_tree
from metastep.step import captured_update, update
from metastep.step.capture import Captured
from metastep.step.compiled import engine, plan
from metastep.step.compiled.plan import WARM
from tests.core.helpers import DYNAMICS, by_autograd, case, relative_error
from tests.step.compiled.helpers import compiling, taped
from tests.step.helpers import some_tasks, tanh_net, values_of

pytestmark = pytest.mark.compiled
REPLAYED = "compiled, 3 tasks at a time, captured in a CUDA graph"


def is_right(gradient: ms.MetaGradient, meta: Any, tasks: Any) -> bool:
    return relative_error(gradient(meta, tasks).grad, by_autograd(gradient, meta, tasks).grad) < 1e-9


@pytest.mark.parametrize("chunk_size", [None, 1])
@pytest.mark.parametrize(
    ("problem", "inner"), [("regression", "momentum"), ("meta_network", "adam"), ("example_weights", "scheduled")]
)
def test_a_replay_gives_the_derivative(problem: str, inner: str, chunk_size: int | None) -> None:
    given, meta, tasks = case(problem)
    gradient = compiling(given, ms.MultiStep(2), DYNAMICS[inner], steps=4, record=taped, chunk_size=chunk_size)
    kept = []
    for call in range(6):
        meta, tasks = (map_tree(lambda x: 1.1 * x if x.is_floating_point() else x, tree) for tree in (meta, tasks))
        found, expected = gradient(meta, tasks), by_autograd(gradient, meta, tasks)
        assert relative_error(found.grad, expected.grad) < 1e-9, call
        torch.testing.assert_close(found.metrics, expected.metrics)
        kept.append((found.grad, expected.grad))
    assert gradient.path.endswith("captured in a CUDA graph"), gradient.path
    assert all(relative_error(*pair) < 1e-9 for pair in kept)  # no replay writes over what was returned


def test_first_order_is_replayed() -> None:
    given, meta, tasks = case("regression")
    parts = given, ms.FOMAML(), ms.SGD(0.1)
    gradient, eager = compiling(*parts, steps=4, record=taped), ms.MetaGradient(*parts, steps=4)
    for _ in range(5):
        found, expected = gradient(meta, tasks), eager(meta, tasks)
        assert relative_error(found.grad, expected.grad) < 1e-9
        assert found.growth is expected.growth is None
    assert gradient.path == REPLAYED


def test_rates_and_held_tensors_are_read_at_every_replay() -> None:
    rate, held = [0.1] * 65, torch.ones(4, dtype=torch.float64)  # longer than what is looked at
    problem = ms.Problem(
        lambda meta, task: meta,
        ms.every_window(lambda w, meta, batch: (held * (w - batch) ** 2).sum()),
        lambda w, meta, task: (w - task.query).square().sum(),
    )
    inner = ms.SGD(lambda meta, step: rate[0] / (1 + step))
    gradient = compiling(problem, ms.MAML(), inner, steps=3, record=taped)
    meta, tasks = torch.ones(4).double(), ms.Task(torch.rand(3, 4).double(), torch.rand(3, 4).double())
    for _ in range(7):
        rate[0] *= 0.9
        held.mul_(0.8)
        assert is_right(gradient, meta, tasks)
    assert gradient.path == REPLAYED


def test_what_a_graph_would_freeze_is_not_captured() -> None:
    net = nn.Sequential(nn.Linear(2, 5), nn.Dropout(0.4), nn.Tanh(), nn.Linear(5, 1)).double()
    gradient = compiling(ms.few_shot(net, F.mse_loss), ms.MAML(), ms.SGD(0.1), steps=2, record=taped)
    for _ in range(WARM + 1):
        gradient(net, case("regression").tasks)
    assert gradient.path.endswith("not captured: random numbers are drawn")


def test_a_plan_that_cannot_be_captured_is_called() -> None:
    def refuse(run: Callable[[], None]) -> Callable[[], None]:
        run()
        raise RuntimeError("not permitted while capturing\nand a long story")

    given, meta, tasks = case("regression")
    gradient = compiling(given, ms.MAML(), ms.SGD(0.1), steps=2, record=refuse)
    for _ in range(WARM + 2):
        assert is_right(gradient, meta, tasks)
    assert gradient.path == "compiled, 3 tasks at a time, called as it is: not permitted while capturing"


def test_replays_are_compared_and_counted() -> None:
    """A value that nobody can see is frozen by a trace; the fourth call is compared."""
    annealed: list[Any] = [[1.0]] * 65  # longer than what is looked at
    problem = ms.Problem(
        lambda meta, task: meta,
        ms.every_window(lambda w, meta, batch: annealed[0][0] * (w - batch).square().sum()),
        lambda w, meta, task: (w - task.query).square().sum(),
    )
    gradient = compiling(problem, ms.MultiStep(2), ms.SGD(0.1), steps=4, record=taped)
    meta, tasks = torch.ones(4).double(), ms.Task(torch.rand(3, 4).double(), torch.rand(3, 4).double())
    for _ in range(WARM):
        gradient(meta, tasks)
    with counting() as counts:
        gradient(meta, tasks)
    assert (counts.gradients, counts.products) == (3, 2)
    annealed[0] = [0.5]
    assert is_right(gradient, meta, tasks)
    assert "differed from autograd's" in gradient.path


def test_a_captured_update_holds_a_compiled_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is captured, nothing is compiled, compared or captured by itself."""
    inside = [False]
    for module in (derivatives, engine, plan):
        monkeypatch.setattr(module, "is_captured", lambda: inside[0])

    def recorded(run: Callable[[], None]) -> Callable[[], None]:
        run()
        run()
        inside[0] = True
        try:
            with monkeypatch.context() as alone:
                alone.setattr(engine.Compiled, "_compared", None)
                return _once(run)
        finally:
            inside[0] = False

    def _once(run: Callable[[], None]) -> Callable[[], None]:
        from tests.step.compiled.helpers import Tape

        with Tape() as tape:
            run()
        return tape.replay

    monkeypatch.setattr(captured_update, "unit", lambda step, device: Captured(step, recorded))
    nets = []
    for captured in (True, False):
        monkeypatch.setattr(update, "why_not_captured", lambda *of, c=captured: None if c else "to compare with")
        net = tanh_net(0)
        parts = ms.few_shot(net, F.mse_loss), ms.MultiStep(2), ms.SGD(0.1)
        gradient = compiling(*parts, steps=4, record=taped) if captured else ms.MetaGradient(*parts, steps=4)
        step = ms.MetaStep(gradient, net, Adam(net.parameters(), 0.01), clip=1.0)
        for seed in range(6):
            step(some_tasks(seed))
        step.settle()
        nets.append(values_of(net))
        assert ("compiled" in step.path) == captured, step.path
        assert len(gradient.compiled._captured) == captured
    assert relative_error(*nets) < 1e-9
