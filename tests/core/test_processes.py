"""Several processes: the meta-gradient is averaged as the page says, and what would not average it is refused."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing import spawn

import metastep as ms
from metastep.core.trees import map_tree
from tests.core.helpers import case, relative_error


def estimate(tasks: slice) -> ms.Estimate:
    problem, meta, every = case("regression")
    gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(0.1), steps=3)
    return gradient(meta, map_tree(lambda x: x[tasks], every))


def process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    found = estimate(slice(rank, rank + 1))
    for grad in ms.trees.leaves(found.grad):
        dist.all_reduce(grad)
        grad /= dist.get_world_size()
    torch.save(found.grad, f"{folder}/{rank}")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # at once, as run_rank does and for its reason: gloo's threads can abort in Python's shutdown


def test_two_processes_are_one(tmp_path: Path) -> None:
    spawn(process, (str(tmp_path),), nprocs=2)
    expected = estimate(slice(0, 2)).grad
    for rank in range(2):
        assert relative_error(torch.load(tmp_path / str(rank)), expected) < 1e-12


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_net_that_averages_in_backward_is_refused() -> None:
    net = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    x = torch.ones(1, 2)
    for call in (lambda: ms.few_shot(net, F.mse_loss), lambda: ms.apply(net, ms.parameters(net), x)):
        with pytest.raises(ms.MetastepError, match=r"DistributedDataParallel 'itself'.*\.backward\(\).*\.module, and"):
            call()
    ms.few_shot(net.module, F.mse_loss)
