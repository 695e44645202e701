"""The eager engine equals the specification, and gives the same bits whatever it keeps."""

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap
from torch.utils.checkpoint import checkpoint

import metastep as ms
from metastep.core import registry
from metastep.core.counting import counting, peak_bytes
from metastep.core.trees import Tree, norm, subtract
from metastep.errors import MetastepError
from metastep.step.choice import FEWEST, MAPPED, TOGETHER, by_rule
from metastep.step.eager import estimate, examined, refusal
from metastep.step.mapped import mapped
from metastep.step.memory import Schedule, Sizes, cost, free, in_bytes, last_to_first, of_group, schedule_for
from tests.core.helpers import DYNAMICS, PROBLEMS, STEPS, case, first, method

CPU = torch.device("cpu")
ALL = Schedule(99)  # graphs of all windows are kept
SCHEDULES = (Schedule(3, 1), Schedule(1, 2), Schedule(1, 99, on_disk=True))


def close(found: ms.Estimate, expected: ms.Estimate, by: float = 1e-12) -> bool:
    """Whether two meta-gradients are the same; both may be 0"""
    away, size = norm(subtract(found.grad, expected.grad)), norm(expected.grad)
    return bool(away <= by * size) and bool((found.loss - expected.loss).abs() <= by * expected.loss.abs())


def same_bits(a: Tree, b: Tree) -> bool:
    return all(map(torch.equal, ms.trees.leaves(a), ms.trees.leaves(b)))


def described(problem: str, inner: str, how: ms.methods.Method) -> tuple[ms.MetaGradient, Tree, Any]:
    p, params, tasks = case(problem)
    try:
        gradient = ms.MetaGradient(p, how, DYNAMICS[inner], steps=STEPS)
        meta = gradient.init(params)
        gradient.estimator(meta, first(tasks))
    except (MetastepError, KeyError, TypeError) as reason:
        pytest.skip(f"not for this problem: {reason}")
    return gradient, meta, tasks


# ---- every method, optimizer and problem

SERVED = ("multi_step", "truncated", "fo_maml", "maml_pp", "meta_sgd", "anil", "imaml")
SHARED = ("regression", "convolution")  # φ starts from θ, by name
CASES = [
    (problem, inner, name)
    for problem, inner, name in product(PROBLEMS, DYNAMICS, SERVED)
    if problem in SHARED or name in ("multi_step", "truncated", "fo_maml")
]


@pytest.mark.filterwarnings("ignore:the meta-gradient is exactly 0")  # first order of a meta-network
@pytest.mark.parametrize(("problem", "inner", "name"), CASES)
def test_the_engine_equals_the_specification(problem: str, inner: str, name: str) -> None:
    gradient, meta, tasks = described(problem, inner, method(name))
    if refusal(gradient.estimator):
        pytest.skip("served by the specification itself")
    task = first(tasks)
    expected = gradient.estimator(meta, task)
    found = estimate(gradient.estimator, ALL, meta, task, mapped=False)
    assert close(found, expected)
    torch.testing.assert_close(found.state.state[:2], expected.state.state[:2], rtol=1e-12, atol=1e-13)
    assert found.state.state.step == expected.state.state.step
    torch.testing.assert_close(found.metrics, expected.metrics, rtol=1e-12, atol=1e-13)
    for schedule in SCHEDULES:
        other = estimate(gradient.estimator, schedule, meta, task, mapped=False)
        assert same_bits((found.grad, found.loss), (other.grad, other.loss))


@pytest.mark.parametrize("name", ["multi_step", "maml_pp", "truncated", "fo_maml", "anil", "imaml"])
@pytest.mark.parametrize("inner", ["momentum", "adam", "scheduled", "own"])
@pytest.mark.parametrize("problem", SHARED)
def test_tasks_that_are_mapped_give_the_same(problem: str, inner: str, name: str) -> None:
    gradient, meta, tasks = described(problem, inner, method(name))

    def each(task: Any, schedule: Schedule = ALL) -> Any:
        return estimate(gradient.estimator, schedule, meta, task, mapped=True)[:2]

    loss, grad = vmap(each)(tasks)
    expected = [gradient.estimator(meta, task) for task in zip_tasks(tasks)]
    for i, one in enumerate(expected):
        found = ms.estimators.Estimate(loss[i], map_first(grad, i), {})
        assert close(found, one)
    again = vmap(lambda task: each(task, Schedule(1, 1)))(tasks)
    assert same_bits((loss, grad), again)


def zip_tasks(tasks: Any) -> list[Any]:
    return [map_first(tasks, i) for i in range(3)]


def map_first(tree: Tree, i: int) -> Tree:
    return ms.trees.map_tree(lambda x: x[i], tree)


def test_the_registry_is_served() -> None:
    """What is left to the specification, by name"""
    problem, inner = case("regression").problem, ms.Adam(0.02)
    made = {name: ms.MetaGradient(problem, method(name), inner, steps=2) for name in registry.names("method")}
    refused = {name for name, gradient in made.items() if refusal(gradient.estimator)}
    assert refused <= {"es_maml", "ggs_maml", "hf_maml", "reference", "reptile"}


# ---- the same bits in long loops, with noise, with memory that is short


def long_loop(dropout: float = 0.0) -> tuple[ms.Problem, Tree, ms.Task]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.GELU(), nn.LayerNorm(6), nn.Dropout(dropout), nn.Linear(6, 2))
    tasks = ms.Task((torch.randn(2, 8, 3), torch.randn(2, 8, 2)), (torch.randn(2, 8, 3), torch.randn(2, 8, 2)))
    return ms.few_shot(net, F.mse_loss), ms.parameters(net), tasks


@pytest.mark.parametrize("inner", [ms.SGD(0.05, momentum=0.9), ms.Adam(0.01)])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_budget_changes_no_bit(inner: Any, dropout: float) -> None:
    """Some operators, such as GELU, round otherwise where no graph is made"""
    problem, meta, tasks = long_loop(dropout)
    found, paths = [], []
    for memory in ("1GB", 300_000, 100_000, 12_000, 800):
        gradient = ms.MetaGradient(problem, ms.MAML(), inner, steps=200, memory=memory)
        torch.manual_seed(7)
        found.append((gradient(meta, tasks).grad, torch.rand(())))
        paths.append(gradient.path)
    assert all(same_bits(found[0], other) for other in found[1:])
    assert "graphs of all windows kept" in paths[0]
    assert len(set(paths)) == 5
    assert paths[-1].count("on disk") == 1
    if dropout:
        stored = ms.MetaGradient(problem, ms.methods.Reference(), inner, steps=200, chunk_size=1)
        torch.manual_seed(7)
        assert close(
            ms.Estimate(torch.ones(()), found[0][0], {}), stored(meta, tasks)._replace(loss=torch.ones(())), 1e-2
        )


def test_states_alone_take_little_memory() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 100), nn.Tanh(), nn.Linear(100, 5))
    params = sum(p.numel() for p in net.parameters()) * 4
    tasks = ms.Task((torch.randn(1, 60, 20), torch.randn(1, 60, 5)), (torch.randn(1, 6, 20), torch.randn(1, 6, 5)))
    peaks = {}
    for memory in ("1GB", "2MB", "300KB"):
        gradient = ms.MetaGradient(ms.few_shot(net, F.mse_loss), ms.MAML(), ms.Adam(0.01), steps=64, memory=memory)
        gradient(net, tasks)
        peaks[memory] = peak_bytes(lambda g=gradient: g(net, tasks), CPU)[1]  # type: ignore[misc]
    assert peaks["1GB"] > 4 * peaks["2MB"]
    assert peaks["2MB"] < 2.5e6
    assert peaks["300KB"] < peaks["2MB"]
    assert peaks["1GB"] > 64 * 3 * params


def test_where_a_block_is_one_window_the_state_before_it_keeps_no_velocity() -> None:
    """The pullback of a window of SGD does not depend on it, and nobody goes on from there"""
    problem, meta, tasks = long_loop()
    size, peaks = sum(p.nbytes for p in meta.values()), []
    for inner in (ms.SGD(0.05), ms.SGD(0.05, momentum=0.9)):
        estimator = ms.MetaGradient(problem, ms.MAML(), inner, steps=50).estimator
        alone = partial(estimate, estimator, Schedule(1, 99), meta, first(tasks), mapped=False)
        assert same_bits(alone().grad, estimate(estimator, ALL, meta, first(tasks), mapped=False).grad)
        peaks.append(peak_bytes(alone, CPU)[1])
    assert peaks[1] - peaks[0] < 10 * size


def test_a_later_call_goes_on_from_a_state() -> None:
    problem, params, tasks = case("regression")
    for inner in (DYNAMICS["momentum"], DYNAMICS["adam"], DYNAMICS["own"]):
        once = ms.MetaGradient(problem, ms.MAML(), inner, steps=4)
        twice = ms.MetaGradient(problem, ms.MAML(), inner, steps=8)
        kept = once(params, tasks, keep="state").state
        with pytest.warns(UserWarning, match="exactly 0"):  # θ moves the start alone, which is given here
            later = once(params, tasks, keep="params", start=kept)
        torch.testing.assert_close(later.state, twice(params, tasks, keep="params").state, rtol=1e-12, atol=1e-13)


def test_work_is_that_of_the_specification() -> None:
    problem, meta, tasks = case("regression")
    for how, work in ((ms.MAML(), (9, 8)), (ms.MultiStep(4), (3, 2)), (ms.FOMAML(), (9, 0)), (ms.IMAML(), (9, 6))):
        gradient = ms.MetaGradient(problem, how, ms.SGD(0.1), steps=8)
        with counting() as counts:
            gradient(meta, tasks)
        assert (counts.gradients, counts.products) == work


# ---- what is looked at once


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(2, 1), [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls[0] += 1
        out: torch.Tensor = self.linear(x) * (1 + 0.5 * self.calls[0])
        return out


def test_a_loss_that_changes_from_call_to_call_is_refused() -> None:
    net, batch = Counting(), (torch.randn(1, 4, 2), torch.randn(1, 4, 1))
    gradient = ms.MetaGradient(
        ms.Problem(
            lambda meta, task: meta,
            ms.every_window(lambda p, m, b: F.mse_loss(torch.func.functional_call(net, p, (b[0],)), b[1])),
            lambda p, m, task: F.mse_loss(task.query[0] @ p["linear.weight"].T, task.query[1]),
        ),
        ms.MAML(), ms.SGD(0.1), steps=3,
    )  # fmt: skip
    with pytest.raises(MetastepError, match="for the same φ"):
        gradient(ms.parameters(net), ms.Task(batch, batch))


def test_a_module_that_writes_into_its_parameters_is_refused_and_theta_stays() -> None:
    net = nn.Sequential(nn.Embedding(5, 3, max_norm=0.1), nn.Flatten(), nn.Linear(6, 2))
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    batch = (torch.randint(5, (1, 4, 2)), torch.randint(2, (1, 4)))
    gradient = ms.MetaGradient(ms.few_shot(net, F.cross_entropy), ms.MAML(), ms.SGD(0.1), steps=3)
    with pytest.raises(MetastepError, match="max_norm"):
        gradient(net, ms.Task(batch, batch))
    assert same_bits(before, dict(net.named_parameters()))


class Late(nn.Module):
    """Runs again in its backward, at first or from some call on"""

    def __init__(self, since: int | None) -> None:
        super().__init__()
        self.a, self.b, self.since, self.calls = nn.Linear(3, 4), nn.Linear(4, 1), since, iter(range(1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def hidden(x: torch.Tensor) -> torch.Tensor:
            return self.a(x).tanh()

        again = self.since is not None and next(self.calls) >= self.since
        out: torch.Tensor = self.b(checkpoint(hidden, x, use_reentrant=False) if again else hidden(x))
        return out


def test_a_module_that_runs_again_has_one_backward_for_each_window() -> None:
    """Its own parameters must be in place then, and one backward through several windows would need all of them"""

    def found(since: int | None) -> ms.Estimate:
        torch.manual_seed(0)
        batch = torch.randn(2, 5, 3), torch.randn(2, 5, 1)
        problem = ms.few_shot(Late(since).double(), F.mse_loss)
        task = ms.trees.map_tree(torch.Tensor.double, ms.Task(batch, batch))
        gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(0.1, momentum=0.9), steps=5, chunk_size=1)
        return gradient(problem.made_of.module, task)

    assert close(found(0), found(None))
    with pytest.raises(MetastepError, match="runs again in its backward"):
        found(15)  # after the first look


# ---- one rule of shapes, or the clock


@pytest.mark.parametrize(
    ("graph", "number", "expected"),
    [
        (1000, FEWEST - 1, 1), (1000, FEWEST, FEWEST), (1000, 100, 100), (MAPPED + 1, 8, 1),
        (MAPPED, 2 * TOGETHER // MAPPED, TOGETHER // MAPPED),
        (MAPPED, TOGETHER // MAPPED + 1, TOGETHER // MAPPED // 2 + 1),
    ],
)  # fmt: skip
def test_small_tasks_run_together_and_large_ones_one_by_one(graph: int, number: int, expected: int) -> None:
    assert by_rule(Sizes(graph, 10), number, CPU) == expected
    assert by_rule(Sizes(graph, 10), number, torch.device("cuda")) == number


def test_the_clock_is_asked_once_and_told() -> None:
    problem, meta, tasks = case("regression")
    gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(0.1), steps=2, benchmark=True)
    plain = ms.MetaGradient(problem, ms.MAML(), ms.SGD(0.1), steps=2)
    assert close(gradient(meta, tasks), plain(meta, tasks))
    assert "chosen by the clock" in gradient.path
    assert "clock" not in plain.path
    (chosen,) = gradient.choices.measured.values()
    assert chosen in (1, 3)
    again = ms.MetaGradient(problem, ms.MAML(), ms.SGD(0.1), steps=2, benchmark=True)
    again.choices.measured.update(dict.fromkeys(gradient.choices.measured, 3))
    again(meta, tasks)
    assert again.path.startswith("autograd, 3 tasks at a time")


def test_the_choice_of_the_clock_is_a_part_of_the_state() -> None:
    problem, params, tasks = case("regression")
    gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(0.1), steps=2, benchmark=True)
    meta = {name: p.detach().clone().requires_grad_() for name, p in params.items()}
    step = ms.MetaStep(gradient, meta, torch.optim.SGD(meta.values(), lr=0.1))
    step(tasks)
    state = step.state_dict()
    (kind,) = state["choices"]
    other = {1: 3, 3: 1}[state["choices"][kind]]
    step.load_state_dict(state | {"choices": {kind: other}})
    step(tasks)
    assert gradient.path.startswith({1: "autograd, one task after", 3: "autograd, 3 tasks at a time"}[other])


# ---- autocast


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("inner", [ms.SGD(0.1, momentum=0.9), ms.Adam(0.01, eps=1e-3)])
def test_losses_run_in_the_precision_of_autocast_and_states_do_not(inner: Any, chunk: int) -> None:
    problem, params, tasks = case("regression")
    params, tasks = ms.trees.map_tree(torch.Tensor.float, (params, tasks))

    def found(how: ms.methods.Method) -> ms.Estimate:
        gradient = ms.MetaGradient(problem, how, inner, steps=4, chunk_size=chunk)
        return gradient(params, tasks, keep="state")

    plain = found(ms.MAML())
    with torch.autocast("cpu", torch.bfloat16):
        cast, stored = found(ms.MAML()), found(ms.methods.Reference())
        assert torch.is_autocast_cache_enabled()
    kept = ms.trees.leaves((cast.grad, cast.state.params, cast.state.memory))
    assert {x.dtype for x in kept} == {torch.float32}
    assert not close(cast, plain, 1e-5)
    assert close(cast, plain, 0.1)
    assert close(cast, stored, 1e-5)


def test_what_is_transformed_goes_by_the_specification() -> None:
    problem, meta, tasks = case("regression")
    gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(0.1), steps=2)
    with torch.inference_mode():
        found = gradient.unchecked(meta, tasks)
    assert "inference mode" in gradient.path
    assert close(found, mapped(ms.MAML(), gradient.loop, None)(meta, tasks, None))


# ---- memory


@pytest.mark.parametrize(
    ("memory", "size"),
    [("4GB", 4 * 10**9), ("1.5 MB", 1_500_000), ("2GiB", 2**31), ("7", 7), (12, 12), (2.5e6, 2_500_000)],
)
def test_a_budget_is_read(memory: Any, size: int) -> None:
    assert in_bytes(memory, CPU) == size


@pytest.mark.parametrize("memory", ["", "much", "4 G B", "0MB", 0, -1, True, "-3GB"])
def test_no_budget_is_refused(memory: Any) -> None:
    problem = case("regression").problem
    with pytest.raises(MetastepError, match='Write it as "4GB"'):
        ms.MetaGradient(problem, ms.MAML(), ms.SGD(0.1), steps=2, memory=memory)


def test_the_limit_of_a_control_group_counts(tmp_path: Any) -> None:
    assert of_group(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert of_group(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    assert of_group(tmp_path) == 995
    old = tmp_path / "old"
    (old / "memory").mkdir(parents=True)
    (old / "memory/memory.limit_in_bytes").write_text("50")
    (old / "memory/memory.usage_in_bytes").write_text("60")
    assert of_group(old) == 0
    assert free(CPU) > 0


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (1000, Schedule(10)), (999, Schedule(4, 2)), (250, Schedule(1, 9)),
        (150, Schedule(1, 5)), (129, Schedule(1, 2)), (1, Schedule(1, 9, True)),
    ],
)  # fmt: skip
def test_the_fastest_schedule_that_fits(budget: int, expected: Schedule) -> None:
    """Ten windows of 100 bytes, states of 10"""
    assert schedule_for(budget, 10, Sizes(100, 10)) == expected


def test_the_disk_is_for_long_loops() -> None:
    """A short loop runs its blocks again sooner than it writes and reads states"""
    assert schedule_for(1, 9, Sizes(100, 10)) == Schedule(1, 0)
    assert schedule_for(1, 10, Sizes(100, 10)) == Schedule(1, 9, on_disk=True)
    assert schedule_for(130, 300, Sizes(100, 10)) == Schedule(1, 299, on_disk=True)
    assert schedule_for(130, 30, Sizes(100, 10)) == Schedule(1, 3)


def test_the_schedule_is_told() -> None:
    assert Schedule(10).told(10) == "graphs of all windows kept"
    assert Schedule(4, 2).told(10) == "states of all blocks of 4 of 10 windows kept in memory"
    assert Schedule(1, 5).told(10) == "6 states of 10 blocks of 1 of 10 windows kept in memory"
    assert Schedule(1, 9, True).told(10) == "states of all blocks of 1 of 10 windows kept on disk"


# ---- binomial checkpoints


@pytest.mark.parametrize("slots", [0, 1, 2, 3, 7, 30])
@pytest.mark.parametrize("blocks", [1, 2, 3, 7, 30])
def test_every_block_comes_once_last_first_with_few_states(blocks: int, slots: int) -> None:
    runs, live, most = 0, 0, 0

    class State(int):
        def __new__(cls, value: int) -> "State":
            nonlocal live, most
            live += 1
            most = max(most, live)
            return super().__new__(cls, value)

        def __del__(self) -> None:
            nonlocal live
            live -= 1

    def run(begin: int, end: int, state: int) -> int:
        nonlocal runs
        assert int(state) == begin
        runs += end - begin
        return State(end)

    def keep(state: int) -> Any:
        return lambda: state

    seen = []
    for block, state in last_to_first(blocks, State(0), slots, run, keep):
        assert int(state) == block
        seen.append(block)
        del state
    assert seen == list(reversed(range(blocks)))
    if slots:
        assert runs == cost(blocks, min(slots, blocks - 1) + 1 if blocks > 1 else 1)
    assert most <= slots + 3


@pytest.mark.parametrize("states", [1, 2, 3, 8])
@pytest.mark.parametrize("blocks", [1, 2, 5, 20, 100])
def test_the_cost_is_that_of_griewank_and_walther(blocks: int, states: int) -> None:
    best = {(1, s): 0 for s in range(1, states + 1)} | {(n, 1): n * (n - 1) // 2 for n in range(1, blocks + 1)}
    for s, n in product(range(2, states + 1), range(2, blocks + 1)):
        best[n, s] = min(m + best[m, s] + best[n - m, s - 1] for m in range(1, n))
    assert cost(blocks, states) == best[blocks, states]


def test_a_window_is_measured_and_leaves_nothing_behind() -> None:
    problem, meta, tasks = long_loop(dropout=0.5)
    gradient = ms.MetaGradient(problem, ms.MAML(), ms.Adam(0.01), steps=3)
    before = torch.get_rng_state()
    with counting() as counts:
        sizes = examined(gradient.estimator, meta, first(tasks))
    assert torch.equal(before, torch.get_rng_state())
    assert (counts.gradients, counts.products) == (0, 0)
    numbers = sum(p.numel() for p in meta.values())
    assert sizes.state == 3 * 4 * numbers  # φ and both moments
    assert sizes.graph > sizes.state
