"""Two processes of torchrun make the update that one makes with the tasks of both, whatever the problem is."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing import spawn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau

import metastep as ms
from metastep.core.trees import Tree, map_tree
from tests.core.helpers import case, relative_error
from tests.step.helpers import each, gradient_of, some_tasks, tanh_net, values_of

Made = tuple[ms.MetaStep, Any]
SHARES = {0: slice(0, 2), 1: slice(2, 3)}  # of three tasks


def of_case(name: str, method: ms.methods.Method, **options: Any) -> Made:
    problem, meta, tasks = case(name)
    gradient = ms.MetaGradient(problem, method, ms.SGD(0.1), steps=3)
    meta = map_tree(lambda x: x.detach().clone().requires_grad_(), meta)
    # A bias in front of a BatchNorm has the gradient 0 and some rounding, which Adam would enlarge.
    optimizer = (SGD if name == "convolution" else Adam)(ms.trees.leaves(meta), 1e-2)
    return ms.MetaStep(gradient, meta, optimizer, **options), tasks


def with_rates() -> Made:
    net = tanh_net()
    gradient = gradient_of(net, ms.MetaSGD(window=2))
    meta = gradient.init(net)
    return ms.MetaStep(gradient, meta, Adam(ms.trees.leaves(meta), 1e-2), clip=0.1), some_tasks(number=3)


def two_precisions() -> Made:
    """θ in float32 and complex128"""

    def inner(params: Tree, meta: Tree, batch: Any) -> Tensor:
        return (params - batch).square() * meta[0].abs().square().sum() + meta[1].double() * params.square()

    problem = ms.Problem(
        lambda meta, task: torch.zeros((), dtype=torch.float64),
        ms.every_window(inner),
        lambda params, meta, task: (params - task.query).square(),
    )
    meta = [torch.tensor([0.3 + 0.2j], dtype=torch.complex128).requires_grad_(), torch.tensor(0.3).requires_grad_()]
    gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(0.1), steps=3)
    tasks = ms.Task(torch.arange(3.0, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    return ms.MetaStep(gradient, meta, SGD(meta, 0.1)), tasks


def plateau() -> Made:
    net = tanh_net()
    optimizer = SGD(net.parameters(), 0.1)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=10.0)
    return ms.MetaStep(gradient_of(net), net, optimizer, scheduler=scheduler), some_tasks(number=3)


CASES: dict[str, Callable[[], Made]] = {
    "few shot": lambda: of_case("regression", ms.MultiStep(window=2), clip=0.1),
    "meta-network": lambda: of_case("meta_network", ms.MAML(), clip_value=0.01),
    "example weights": lambda: of_case("example_weights", ms.MultiStep(window=3)),
    "two losses": lambda: of_case("two_losses", ms.MAML()),
    "iMAML": lambda: of_case("regression", ms.IMAML(strength=2.0)),
    "Reptile": lambda: of_case("regression", ms.Reptile()),
    "a chain": lambda: of_case("convolution", ms.MAML()),
    "learned rates": with_rates,
    "two precisions": two_precisions,
    "plateau": plateau,
}


def updated(made: Made, some: Callable[[Any], Any]) -> Any:
    step, tasks = made
    losses = [step(some(tasks)).loss for _ in range(3)]
    return {"theta": [leaf.detach() for leaf in ms.trees.leaves(step.meta)], "losses": losses}


def not_finite(rank: int) -> dict[str, Any]:
    """The second process meets a task that is not finite; both must tell, and stay as they were"""
    told: dict[str, Any] = {}
    for kind in ("stacked", "list"):
        net = tanh_net()
        step = ms.MetaStep(gradient_of(net), net, Adam(net.parameters(), 1e-2))
        good = some_tasks(number=2)
        bad = ms.Task(good.support, (good.query[0], good.query[1] * torch.nan))
        step(good)
        before, tasks = values_of(net), bad if rank == 1 else good
        try:
            step(each(tasks) if kind == "list" else tasks)
        except ms.NonFiniteError as error:
            told[kind] = str(error)
        assert relative_error(values_of(net), before) == 0
        step(good)
        told[f"{kind}, then"] = values_of(net)
    return told


class Own(nn.Module):
    """A net of which a part is frozen, and drawn by each process for itself"""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(2, 3).double().requires_grad_(False)
        self.register_buffer("shift", torch.randn(3, dtype=torch.float64))
        self.head = nn.Linear(3, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.features(x) + self.shift))  # type: ignore[no-any-return]


def drawn_anew(rank: int) -> dict[str, Tensor]:
    torch.manual_seed(rank)
    net = Own()
    gradient = ms.MetaGradient(ms.few_shot(net, F.mse_loss), ms.MAML(), ms.SGD(0.1), steps=2)
    step = ms.MetaStep(gradient, net, SGD(net.parameters(), 0.1))
    step(some_tasks(rank, 2))
    return {name: x.detach() for name, x in net.state_dict().items()}


def process(rank: int, folder: str) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="localhost")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    share = lambda tasks: map_tree(lambda x: x[SHARES[rank]], tasks)  # noqa: E731
    found: dict[str, Any] = {name: updated(make(), share) for name, make in CASES.items()}
    found["not finite"], found["drawn anew"] = not_finite(rank), drawn_anew(rank)
    torch.save(found, f"{folder}/{rank}")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # at once, as run_rank does and for its reason: gloo's threads can abort in Python's shutdown


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    spawn(process, (str(folder),), nprocs=2)
    return [torch.load(folder / str(rank)) for rank in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_two_processes_make_the_updates_of_one(name: str, ranks: list[dict[str, Any]]) -> None:
    alone = updated(CASES[name](), lambda tasks: tasks)
    for found in ranks:
        for key in ("theta", "losses"):
            assert relative_error(found[name][key], alone[key]) < (1e-6 if name == "two precisions" else 1e-12)
    assert all(map(torch.equal, ranks[0][name]["theta"], ranks[1][name]["theta"]))


@pytest.mark.parametrize("kind", ["stacked", "list"])
def test_every_process_is_told_of_an_update_that_is_not_finite(kind: str, ranks: list[dict[str, Any]]) -> None:
    by_another, by_itself = (found["not finite"][kind] for found in ranks)
    assert "update 2: the meta-gradient is not finite, by the tasks of another process" in by_another
    assert "update 2: task 0: all inner gradients are finite, but the outer loss is not" in by_itself
    ours, theirs = (found["not finite"][f"{kind}, then"] for found in ranks)
    assert relative_error(ours, theirs) == 0


def test_every_process_has_the_frozen_parts_and_buffers_of_the_first(ranks: list[dict[str, Any]]) -> None:
    ours, theirs = (found["drawn anew"] for found in ranks)
    assert ours.keys() == {"shift", "features.weight", "features.bias", "head.weight", "head.bias"}
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


CONNECTED = """
import os, sys, torch
import torch.nn.functional as F
import metastep as ms
from metastep.step import ranks

net = torch.nn.Linear(2, 1)
gradient = ms.MetaGradient(ms.few_shot(net, F.mse_loss), ms.MAML(), ms.SGD(0.1), steps=1)
step = ms.MetaStep(gradient, net, torch.optim.Adam(net.parameters(), 1e-2))
batch = torch.randn(2, 3, 2), torch.randn(2, 3, 1)
step(ms.Task(batch, batch))
names = lambda: [open(f"/proc/self/task/{number}/comm").read() for number in os.listdir("/proc/self/task")]
had = any("gloo" in name for name in names())
ranks._disconnect()
sys.exit(int(not had or any("gloo" in name for name in names())))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads have names in /proc on Linux only")
def test_processes_that_a_step_connects_leave_no_thread_behind(tmp_path: Path) -> None:
    """A thread of gloo that outlives Python aborts the process: one run in six did so"""
    (tmp_path / "script.py").write_text(CONNECTED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, timeout=120)


def test_a_process_group_of_one_is_this_process_alone(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        found = updated(CASES["few shot"](), lambda tasks: tasks)
    finally:
        dist.destroy_process_group()
    alone = updated(CASES["few shot"](), lambda tasks: tasks)
    assert all(map(torch.equal, found["theta"], alone["theta"]))
