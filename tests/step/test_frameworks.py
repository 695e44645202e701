"""`gradient.loss` in what others build on `.backward()`: DistributedDataParallel, accelerate and Lightning.

The same three updates by each of them, on one process and on two, are those of a plain loop over all tasks.
"""

import os
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.utils.data import DataLoader

import metastep as ms
from metastep.core.trees import map_tree
from metastep.errors import MetastepError
from tests.core.helpers import relative_error
from tests.step.helpers import each, gradient_of, some_tasks, tanh_net, values_of

UPDATES, CLIP, RATE = 3, 1.0, 0.1
TASKS = some_tasks(number=4)


class MetaLoss(nn.Module):
    """What wraps a module calls its forward: so let that be the loss"""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.gradient = gradient_of(net)

    def forward(self, tasks: ms.Task) -> Tensor:
        return self.gradient.loss(self.net, tasks)


def part(of: int, number: int, tasks: ms.Task = TASKS) -> ms.Task:
    size = len(tasks.support[0]) // number
    return map_tree(lambda x: x[of * size : (of + 1) * size], tasks)  # type: ignore[no-any-return]


def plainly() -> dict[str, Tensor]:
    net = tanh_net()
    gradient, optimizer = gradient_of(net), SGD(net.parameters(), RATE)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        gradient.loss(net, TASKS).backward()
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
    return values_of(net)


def by_ddp(rank: int, ranks: int) -> dict[str, Tensor]:
    net = tanh_net(rank)  # the wrapper gives all processes the parameters of the first
    model = DistributedDataParallel(MetaLoss(net))
    optimizer = SGD(model.parameters(), RATE)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        model(part(rank, ranks)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    return values_of(net)


def by_ddp_in_parts(rank: int, ranks: int) -> dict[str, Tensor]:
    """Accumulated: only the last part talks to the other processes"""
    net = tanh_net()
    model = DistributedDataParallel(MetaLoss(net), find_unused_parameters=True)
    optimizer, own = SGD(model.parameters(), RATE), part(rank, ranks)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        with model.no_sync():
            (0.5 * model(part(0, 2, own))).backward()
        (0.5 * model(part(1, 2, own))).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    return values_of(net)


def by_hand(rank: int, ranks: int) -> dict[str, Tensor]:
    """As the page says: the user averages `.grad`"""
    net = tanh_net()
    gradient, optimizer = gradient_of(net), SGD(net.parameters(), RATE)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        gradient.loss(net, part(rank, ranks)).backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
    return values_of(net)


def by_accelerate(rank: int, ranks: int) -> dict[str, Tensor]:
    from accelerate import Accelerator

    net, accelerator = tanh_net(), Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(
        MetaLoss(net), SGD(net.parameters(), RATE), DataLoader(each(TASKS), batch_size=len(TASKS.support[0]) // ranks)
    )
    for _ in range(UPDATES):
        for tasks in loader:
            optimizer.zero_grad()
            accelerator.backward(model(tasks))
            accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
    return values_of(net)


def by_accelerate_in_parts(rank: int, ranks: int) -> dict[str, Tensor]:
    from accelerate import Accelerator

    net, accelerator, own = tanh_net(), Accelerator(cpu=True, gradient_accumulation_steps=2), part(rank, ranks)
    model, optimizer = accelerator.prepare(MetaLoss(net), SGD(net.parameters(), RATE))
    for _ in range(UPDATES):
        for k in range(2):
            with accelerator.accumulate(model):
                accelerator.backward(model(part(k, 2, own)))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                optimizer.zero_grad()
    return values_of(net)


def by_lightning(rank: int, ranks: int, automatic: bool) -> dict[str, Tensor]:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Learned(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.automatic_optimization = tanh_net(), automatic
            self.gradient = gradient_of(self.net)

        def training_step(self, tasks: ms.Task, index: int) -> Tensor | None:
            loss = self.gradient.loss(self.net, tasks)
            if automatic:
                return loss
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, gradient_clip_val=CLIP, gradient_clip_algorithm="norm")
            optimizer.step()
            return None

        def validation_step(self, tasks: ms.Task, index: int) -> None:
            assert not self.gradient.loss(self.net, tasks).requires_grad

        def configure_optimizers(self) -> SGD:
            return SGD(self.parameters(), RATE)

    learned, quiet = Learned(), {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy=DDPStrategy(process_group_backend="gloo") if ranks > 1 else "auto",
        max_epochs=UPDATES,
        gradient_clip_val=CLIP if automatic else None,
        enable_model_summary=False,
        **quiet,
    )
    loader = DataLoader(each(TASKS), batch_size=len(TASKS.support[0]) // ranks)
    trainer.fit(learned, loader, loader)
    return values_of(learned.net)


WITH_A_GROUP: dict[str, Callable[[int, int], dict[str, Tensor]]] = {
    "DistributedDataParallel": by_ddp,
    "DistributedDataParallel, in parts": by_ddp_in_parts,
    "by hand": by_hand,
}
FRAMEWORKS: dict[str, Callable[[int, int], dict[str, Tensor]]] = {
    "accelerate": by_accelerate,
    "accelerate, in parts": by_accelerate_in_parts,
    "lightning, automatic": lambda rank, ranks: by_lightning(rank, ranks, automatic=True),
    "lightning, manual": lambda rank, ranks: by_lightning(rank, ranks, automatic=False),
}


def is_installed(name: str) -> bool:
    return name not in FRAMEWORKS or find_spec(name.partition(",")[0]) is not None


ALL = [
    pytest.param(name, marks=pytest.mark.skipif(not is_installed(name), reason=f"{name.partition(',')[0]} is missing"))
    for name in (*WITH_A_GROUP, *FRAMEWORKS)
]


def refused(rank: int) -> str:
    net = tanh_net()
    try:
        gradient_of(net).loss(DistributedDataParallel(net), part(rank, 2))
    except MetastepError as error:
        return str(error)
    return ""


def process(rank: int, folder: str) -> None:
    """torchrun's part of the environment; accelerate and Lightning read it and use the group that they find"""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", GROUP_RANK="0")
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29500", TORCHELASTIC_RUN_ID="tests")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    ways = {name: way for name, way in (WITH_A_GROUP | FRAMEWORKS).items() if is_installed(name)}
    found: dict[str, Any] = {name: way(rank, 2) for name, way in ways.items()}
    torch.save({**found, "refused": refused(rank)}, f"{folder}/{rank}")
    dist.barrier()
    os._exit(0)  # at once, as run_rank does and for its reason: gloo's threads can abort in Python's shutdown


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("frameworks")
    spawn(process, (str(folder),), nprocs=2)
    return [torch.load(folder / str(rank)) for rank in range(2)]


@pytest.mark.parametrize("name", ALL)
def test_two_processes(name: str, two: list[dict[str, Any]]) -> None:
    expected = plainly()
    assert relative_error(expected, values_of(tanh_net())) > 1e-3
    for found in two:
        assert relative_error(found[name], expected) < 1e-12
    assert all(torch.equal(two[0][name][key], two[1][name][key]) for key in expected)


@pytest.mark.filterwarnings("ignore")  # of the frameworks
@pytest.mark.parametrize("name", ALL)
def test_one_process(name: str, tmp_path: Path) -> None:
    if name in FRAMEWORKS:
        found = FRAMEWORKS[name](0, 1)
    else:
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
        try:
            found = WITH_A_GROUP[name](0, 1)
        finally:
            dist.destroy_process_group()
    assert relative_error(found, plainly()) < 1e-12


def test_a_wrapped_net_in_the_place_of_meta_is_refused(two: list[dict[str, Any]]) -> None:
    """Its backward would average nothing, and the processes would diverge"""
    for found in two:
        assert "meta is a DistributedDataParallel" in found["refused"]
        assert "forward(tasks) returns gradient.loss(self.net, tasks)" in found["refused"]
    net = nn.DataParallel(tanh_net())
    with pytest.raises(MetastepError, match=r"meta is a DataParallel.*\.module: ms\.MetaStep averages by itself"):
        ms.MetaStep(gradient_of(net.module), net, SGD(net.parameters(), RATE))


def test_a_gradient_scaler_unscales_what_it_scaled() -> None:
    net = nn.Linear(2, 1)
    gradient = ms.MetaGradient(ms.few_shot(net, F.mse_loss), ms.MAML(), ms.SGD(lr=RATE), steps=2)
    tasks = map_tree(lambda x: x.float(), TASKS)
    expected, before = gradient(net, tasks).grad, values_of(net)
    optimizer, scaler = SGD(net.parameters(), 1.0), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for factor, moved in ((1.0, True), (torch.inf, False)):
        with torch.no_grad():
            for name, p in net.named_parameters():
                p.copy_(before[name])
        optimizer.zero_grad()
        scaler.scale(factor * gradient.loss(net, tasks)).backward()
        scaler.step(optimizer)
        scaler.update()
        after = {name: before[name] - moved * grad for name, grad in expected.items()}
        assert relative_error(values_of(net), after) < 1e-6
    assert scaler.get_scale() == 512.0
