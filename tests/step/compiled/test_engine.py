"""What cannot be compiled, or is not what autograd gives, ends in autograd's numbers and a reason."""

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

import metastep as ms
from metastep.core.trees import Tree, map_tree
from metastep.step.compiled import engine
from metastep.step.compiled.engine import Cost
from metastep.step.compiled.inductor import Run, interpreted, unavailable
from tests.core.helpers import by_autograd, case, relative_error
from tests.step.compiled.helpers import compiling

pytestmark = pytest.mark.compiled
SGD = ms.SGD(0.1)


def problem_of(inner: Any, outer: Any = lambda w, meta, task: (w - task.query).square().sum()) -> ms.Problem:
    return ms.Problem(lambda meta, task: meta, ms.every_window(inner), outer)


def vectors() -> tuple[Tensor, ms.Task]:
    torch.manual_seed(0)
    return torch.randn(4).double(), ms.Task(torch.randn(3, 4).double(), torch.randn(3, 4).double())


def is_right(gradient: ms.MetaGradient, meta: Tree, tasks: Any) -> bool:
    return relative_error(gradient(meta, tasks).grad, by_autograd(gradient, meta, tasks).grad) < 1e-9


# ---- not traced


def branching(w: Tensor, meta: Tensor, batch: Tensor) -> Tensor:
    return (w - batch).square().sum() if batch.sum() > 0 else (w - batch).abs().sum()


def taken_out(w: Tensor, meta: Tensor, batch: Tensor) -> Tensor:
    return float(batch.numpy().sum()) * (w - batch).square().sum()


@pytest.mark.parametrize("loss", [branching, taken_out])
def test_a_loss_that_looks_at_values_runs_eagerly(loss: Any) -> None:
    meta, tasks = vectors()
    gradient = compiling(problem_of(loss), ms.MAML(), SGD, steps=2, chunk_size=1)
    assert is_right(gradient, meta, tasks)
    assert gradient.path.startswith("autograd, one task after the other")
    assert "; not compiled: " in gradient.path


def test_running_statistics_run_eagerly() -> None:
    norm, (meta, tasks) = nn.BatchNorm1d(4, dtype=torch.float64).requires_grad_(False), vectors()
    problem = problem_of(lambda w, meta, batch: norm(w * torch.stack([batch, -batch, batch + 1])).square().sum())
    gradient = compiling(problem, ms.MAML(), SGD, steps=2, chunk_size=1)
    gradient(meta, tasks)
    assert "; not compiled: " in gradient.path


def test_numbers_in_batches_are_kinds_of_windows() -> None:
    def windows(task: Any, lengths: Any) -> list[ms.Window]:
        return [
            ms.Window(lambda w, meta, b: b[1] * (w - b[0]).square().sum(), (task.support, 0.1 * k), 1) for k in range(6)
        ]

    meta, tasks = vectors()
    problem = ms.Problem(lambda meta, task: meta, windows, lambda w, meta, task: (w - task.query).square().sum())
    gradient = compiling(problem, ms.MAML(), SGD, steps=6)
    assert is_right(gradient, meta, tasks)
    assert gradient.path.endswith("not compiled: there are more than 4 kinds of windows")


def test_a_method_without_a_sweep_runs_eagerly() -> None:
    meta, tasks = vectors()
    gradient = compiling(problem_of(branching), ms.methods.Reptile(), SGD, steps=2, chunk_size=1)
    gradient(meta, tasks)
    assert gradient.path.endswith("not compiled: the method is not a sweep over windows")


def test_states_that_are_kept_or_given_run_eagerly() -> None:
    given, meta, tasks = case("regression")
    gradient = compiling(given, ms.MAML(), SGD, steps=2)
    kept = gradient(meta, tasks, keep="params").state
    assert gradient.path.endswith("not compiled: states are kept or given")
    with pytest.warns(UserWarning, match="exactly 0"):
        gradient(meta, tasks, start=kept)
    assert gradient.path.endswith("not compiled: states are kept or given")


def test_autocast_and_inference_mode_run_eagerly() -> None:
    given, meta, tasks = case("regression")
    gradient = compiling(given, ms.MAML(), SGD, steps=2, chunk_size=1)
    with torch.inference_mode():
        gradient(meta, tasks)
    assert "inference mode" in gradient.path
    with torch.autocast("cpu", enabled=True):
        gradient(meta, tasks)
    assert gradient.path.endswith("not compiled: autocast is on")
    gradient(meta, tasks)
    assert gradient.path == "compiled, one task after the other"


@pytest.mark.parametrize("missing", ["there is no C++ compiler; install g++ or clang++", "PyTorch 9 has none"])
def test_without_a_compiler_it_runs_eagerly(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "unavailable", lambda kind: missing)
    given, meta, tasks = case("regression")
    gradient = ms.MetaGradient(given, ms.MAML(), SGD, steps=2, compile=True)
    assert is_right(gradient, meta, tasks)
    assert gradient.path.endswith(f"not compiled: {missing}")


def test_a_compiler_that_is_not_there_is_noticed() -> None:
    from torch._inductor import config, cpp_builder

    cpp_builder.cpp_compiler_search.cache_clear()
    try:
        with config.patch({"cpp.cxx": ("no-such-compiler",)}):  # monkeypatch would leave no option behind
            assert unavailable.__wrapped__("cpu") == "there is no C++ compiler; install g++ or clang++"
    finally:
        cpp_builder.cpp_compiler_search.cache_clear()


def test_a_compiler_that_fails_ends_in_autograd() -> None:
    def failing(graph: GraphModule, examples: Sequence[Tensor], contiguous: int | None = None) -> Run:
        raise RuntimeError("no space left\non this device")

    given, meta, tasks = case("regression")
    gradient = compiling(given, ms.MAML(), SGD, steps=2, build=failing)
    assert is_right(gradient, meta, tasks)
    assert gradient.path.endswith("not compiled: RuntimeError: no space left")


# ---- not what autograd gives


def test_a_wrong_result_ends_in_autograds_for_good() -> None:
    calls = [0]

    def wrong(graph: GraphModule, examples: Sequence[Tensor], contiguous: int | None = None) -> Run:
        right = interpreted(graph, examples, contiguous)

        def run(args: list[Tensor]) -> Sequence[Tensor]:
            calls[0] += 1
            return [x * 1.001 if calls[0] > 20 else x for x in right(args)]

        return run

    given, meta, tasks = case("regression")
    gradient = compiling(given, ms.MAML(), SGD, steps=2, build=wrong)
    errors = []
    for _ in range(5):
        found = gradient(meta, tasks)
        errors.append(relative_error(found.grad, by_autograd(gradient, meta, tasks).grad))
    assert errors[0] < 1e-9
    assert errors[3] < 1e-9
    assert errors[4] < 1e-9
    assert "not compiled: the result differed from autograd's by" in gradient.path


def test_what_nobody_can_see_is_found_by_comparing() -> None:
    annealed = np.ones(1)  # neither a number in a closure nor a tensor
    problem = problem_of(lambda w, meta, batch: float(annealed[0]) * (w - batch).square().sum())
    gradient, (meta, tasks) = compiling(problem, ms.MAML(), SGD, steps=2), vectors()
    for call in range(1, 6):
        annealed *= 0.9
        if call != 3:  # compared at calls 1, 2, 4
            assert is_right(gradient, meta, tasks)
    assert "differed from autograd's" in gradient.path


def test_a_result_that_is_not_finite_is_explained_by_autograd() -> None:
    problem = problem_of(lambda w, meta, batch: (w - batch).square().sum() ** 3)
    gradient, (meta, tasks) = compiling(problem, ms.MAML(), ms.SGD(1e30), steps=4), vectors()
    with pytest.raises(ms.NonFiniteError, match="inner gradient of window"):
        gradient(meta, tasks)


def test_rounding_in_an_unstable_loop_is_no_difference() -> None:
    """A logistic map doubles errors at each step: sums in another order give other numbers after 60 of them."""

    def windows(w: Tensor, meta: Tensor, batch: Tensor) -> Tensor:
        return (w.square() / 2 - 3.99 * (w.square() / 2 - w**3 / 3)).sum() + 0 * batch.sum()  # w ← 3.99 w (1 − w)

    problem = problem_of(windows, lambda w, meta, task: w.square().sum())
    meta = torch.rand(64)

    def turned(graph: GraphModule, examples: Sequence[Tensor], contiguous: int | None = None) -> Run:
        right = interpreted(graph, examples, contiguous)
        return lambda args: [x * (1 + 1e-7) if x.is_floating_point() else x for x in right(args)]

    gradient = compiling(problem, ms.MAML(), ms.SGD(1.0), steps=30, build=turned, chunk_size=1)
    tasks = ms.Task(torch.zeros(1, 1), torch.zeros(1, 1))
    gradient(meta, tasks)
    assert gradient.compiled.reason is None, gradient.compiled.reason


# ---- values that a trace freezes


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.factor = nn.Linear(2, 1).double(), 1.0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.factor * self.layer(x)
        return out


def test_an_attribute_that_changes_is_traced_again_and_then_no_more() -> None:
    net, tasks = Scaled(), case("regression").tasks
    gradient = compiling(ms.few_shot(net, F.mse_loss), ms.MAML(), SGD, steps=2)
    for net.factor in (1.0, 1.5, 2.0, 2.5):
        assert is_right(gradient, ms.parameters(net), tasks)
        assert gradient.path == "compiled, 3 tasks at a time"
    net.factor = 3.0
    assert is_right(gradient, ms.parameters(net), tasks)
    assert "not compiled: there are more than 4 kinds of calls" in gradient.path
    net.factor = 1.5
    assert is_right(gradient, ms.parameters(net), tasks)
    assert gradient.path == "compiled, 3 tasks at a time"


def test_a_frozen_layer_may_get_other_numbers() -> None:
    net, tasks = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).double(), case("regression").tasks
    net[0].requires_grad_(False)
    gradient = compiling(ms.few_shot(net, F.mse_loss), ms.MAML(), SGD, steps=2)
    changes = [
        lambda: net[0].weight.mul_(2),
        lambda: setattr(net[0].weight, "data", 3 * net[0].weight.data),
        lambda: setattr(net[0], "bias", nn.Parameter(net[0].bias + 1, requires_grad=False)),
    ]
    for change in changes:
        change()
        assert is_right(gradient, ms.parameters(net), tasks)
        gradient.compiled._calls = 2  # the next call is not compared
        assert is_right(gradient, ms.parameters(net), tasks)
        assert gradient.path == "compiled, 3 tasks at a time"


def test_the_default_precision_is_traced() -> None:
    problem = problem_of(lambda w, meta, batch: ((w - batch) * torch.ones(4) / torch.tensor(3.0)).square().sum())
    gradient, (meta, tasks) = compiling(problem, ms.MAML(), SGD, steps=2), vectors()
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            assert is_right(gradient, meta, tasks)
    finally:
        torch.set_default_dtype(before)
    assert len(gradient.compiled._plans) == 2


def test_the_mode_of_a_module_is_traced() -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1)).double()
    gradient, tasks = compiling(ms.few_shot(net, F.mse_loss), ms.MAML(), SGD, steps=2), case("regression").tasks
    gradient(net, tasks)
    net.eval()
    assert is_right(gradient, ms.parameters(net), tasks)
    assert gradient.path.startswith("compiled")


COEFFICIENT = 1.0


def test_annealed_coefficients_are_right_at_every_call() -> None:
    global COEFFICIENT
    local, box = 1.0, {"factor": 1.0}

    def loss(w: Tensor, meta: Tensor, batch: Tensor) -> Tensor:
        return COEFFICIENT * local * box["factor"] * (w - batch).square().sum()

    gradient, (meta, tasks) = compiling(problem_of(loss), ms.MAML(), SGD, steps=2), vectors()
    for _ in range(2):
        local *= 0.9
        assert is_right(gradient, meta, tasks)
        COEFFICIENT *= 0.9
        assert is_right(gradient, meta, tasks)
        box["factor"] *= 0.9
        assert is_right(gradient, meta, tasks)
    assert "not compiled: there are more than 4 kinds of calls" in gradient.path


# ---- the door


def test_steps_losses_and_lists_of_tasks_are_compiled() -> None:
    tasks, found = case("regression").tasks, []
    for make in (compiling, ms.MetaGradient):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).double()
        gradient = make(ms.few_shot(net, F.mse_loss), ms.MetaSGD(), ms.SGD(lr=0.1, momentum=0.9), steps=3)
        meta = gradient.init(net)
        step = ms.MetaStep(gradient, meta, torch.optim.Adam(ms.trees.leaves(meta), lr=1e-2), clip=1.0)
        for _ in range(3):
            step(tasks)
        gradient.loss(meta, [map_tree(lambda x, i=i: x[i], tasks) for i in range(3)]).backward()
        found.append([meta, map_tree(lambda x: x.grad, meta)])
        assert gradient.path.startswith("compiled") == gradient.compile
    assert relative_error(*found) < 1e-9


# ---- the description


def test_a_compiling_gradient_is_a_value() -> None:
    net = nn.Linear(2, 1)
    problem = ms.few_shot(net, F.mse_loss)
    a, b = (ms.MetaGradient(problem, ms.MAML(), SGD, steps=2, compile=True) for _ in range(2))
    assert a == b != ms.MetaGradient(problem, ms.MAML(), SGD, steps=2)
    assert repr(a) == "MetaGradient(few_shot(Linear, mse_loss), MAML(), SGD(lr=0.1), steps=2, compile=True)"
    _ = a.compiled
    assert pickle.loads(pickle.dumps(a)).compile


def test_what_would_not_fit_into_memory_runs_eagerly() -> None:
    given, meta, tasks = case("regression")
    gradient = compiling(given, ms.MAML(), SGD, steps=4, memory="1KB")
    assert is_right(gradient, meta, tasks)
    assert "not compiled: its windows would keep" in gradient.path
    assert gradient.path.endswith("MB, and 0.001 MB may be kept")


def test_a_call_that_is_wrong_itself_ends_nothing() -> None:
    given, meta, tasks = case("regression")
    gradient = compiling(given, ms.MAML(), SGD, steps=2)
    with pytest.raises(ms.MetastepError):
        gradient(meta, ms.Task(tasks.support, (tasks.query[0][:2], tasks.query[1])))
    assert is_right(gradient, meta, tasks)
    assert gradient.path == "compiled, 3 tasks at a time"


def test_the_cost_of_compiling_is_estimated_without_compiling() -> None:
    given, meta, tasks = case("regression")
    cost = ms.MetaGradient(given, ms.MAML(), SGD, steps=8).compile_cost(meta, tasks)
    assert cost.compiling > 10
    assert 0 < cost.compiled < cost.eager
    assert cost.calls == pytest.approx(cost.compiling / (cost.eager - cost.compiled))
    with pytest.raises(ms.MetastepError, match="compile nothing: the method is not a sweep over windows"):
        ms.MetaGradient(given, ms.methods.Reptile(), SGD, steps=8).compile_cost(meta, tasks)


def test_a_plan_that_is_slower_says_so() -> None:
    given = case("regression").problem
    gradient = ms.MetaGradient(given, ms.MAML(), SGD, steps=2, compile=True)
    for compiled, told in {
        0.1: "",
        0.3: "; slower than without compile=True, by 3.0 times at the last comparison",
    }.items():
        gradient.compiled.cost = Cost(12.0, 0.1, compiled)
        assert gradient.compiled.path == told


def test_an_optimizer_that_decides_by_its_count_runs_eagerly() -> None:
    given, meta, tasks = case("regression")
    inner = torch.optim.RAdam(given.made_of.module.parameters(), 0.05)  # type: ignore[union-attr]
    gradient = compiling(given, ms.MAML(), inner, steps=8)
    assert is_right(gradient, meta, tasks)
    assert "not compiled: RAdam decides by its count of steps, which is a tensor" in gradient.path


def test_when_compiling_pays() -> None:
    assert Cost(compiling=12.0, eager=0.05, compiled=0.01).calls == pytest.approx(300)
    assert Cost(compiling=12.0, eager=0.01, compiled=0.05).calls == float("inf")
