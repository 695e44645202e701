"""A data set of stripes, and training small enough for a test; as a program, one rank or one run to be killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from metastep.core.methods import MultiStep, Reptile
from metastep.core.optimizers import SGD, Adam
from metastep.core.registry import named, names
from metastep.data.pictures import Pictures
from metastep.errors import MetastepError
from metastep.step import captured_update, update
from metastep.step.capture import Captured
from metastep.step.ranks import run_rank, started_ranks
from metastep.train import remembered
from metastep.train.config import Data, FewShot, Net, Outer, Validation
from metastep.train.fewshot import evaluate
from metastep.train.loop import resume, train
from metastep.train.run import Run
from metastep.train.validated import from_plain, to_plain

ROOT = Path(__file__).parents[3]
SIZE = 16

TINY = FewShot(
    data=Data("stripes", ways=3, shots=1, queries=2),
    net=Net(options={"filters": 4, "head_init": "zero"}, size=SIZE),
    inner=SGD(0.1, 0.9),
    steps=4,
    method=MultiStep(window=2),
    tasks=4,
    iterations=12,
    validation=Validation(every=4, episodes=6),
    checkpoint_seconds=0,
    log_every=1,
    device="cpu",
)

CARRIED = replace(
    TINY,
    inner=Adam(1e-3, (0.0, 0.999)),
    method=Reptile(keep_memory=True),
    outer=Outer("sgd", 1.0, schedule="linear"),
)
SHUFFLED = replace(CARRIED, data=replace(CARRIED.data, shots=2), batch=4)  # 3 classes: none can be balanced
METHODS = [name for name in names("method") if name != "reference"]


def named_method(name: str, **options: Any) -> Any:
    """With what it cannot do without"""
    needed = {"truncated": {"depth": 1}, "multi_step": {"window": 1}}.get(name, {})
    return named("method", name)(**{**needed, **options})


def stripes(split: str = "train") -> Pictures:
    """Classes differ in the direction and width of their stripes, pictures of a class by noise; train and val differ"""
    generator = torch.Generator().manual_seed(["train", "val", "trainval", "test"].index(split))
    classes, per_class = 8, 6
    x, y = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    angle, width = torch.rand(2, classes, 1, 1, 1, generator=generator)
    wave = torch.sin((x * torch.cos(3 * angle) + y * torch.sin(3 * angle)) * (0.5 + 2 * width))
    noise = torch.randn(classes, per_class, SIZE, SIZE, generator=generator)
    images = (127 + 80 * wave + 30 * noise).clamp(0, 255).to(torch.uint8)[:, :, None]
    names = tuple(f"stripe {i}" for i in range(classes))
    return Pictures.of_rows(images, names, ("stripes",) * classes)


def loading(classes: Callable[[str], Pictures]) -> Callable[..., Any]:
    """What stands for `load`, of a data set with these classes in each split, and a folder that is there"""
    return lambda *asked, **options: SimpleNamespace(classes=classes, root=Path())


def narrow(ways: int, channels: int, size: int) -> nn.Module:
    """A user's net that does not fit"""
    return nn.Sequential(nn.Flatten(), nn.Linear(3, ways))


def pictures(ways: int, channels: int, size: int) -> nn.Module:
    """A user's net that does not name classes"""
    return nn.Conv2d(channels, channels, 1)


def wide(ways: int, channels: int, size: int, filters: int) -> nn.Module:
    """A user's own net with an option"""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, filters), nn.ReLU(), nn.Linear(filters, ways))


class Flat(nn.Module):
    """A user's own net"""

    def __init__(self, ways: int, channels: int, size: int) -> None:
        super().__init__()
        self.head = nn.Linear(channels * size * size, ways)
        self.register_buffer("shift", torch.full((1,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1) - self.shift)


def nothing(**given: int) -> int:
    """No net"""
    return 3


def broken(**given: int) -> None:
    raise KeyError("no such")


class Noisy(Flat):
    """One with dropout, a frozen parameter, and a buffer whose shape depends on the ways"""

    def __init__(self, ways: int, channels: int, size: int) -> None:
        super().__init__(ways, channels, size)
        self.drop = nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.ones(1), requires_grad=False)
        self.register_buffer("offset", torch.zeros(ways))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.drop(self.scale * x)) + self.offset


def tiny(**changes: Any) -> FewShot:
    """TINY with fields changed, its own or those of its outer optimizer"""
    outer = {
        name: changes.pop(name)
        for name in ("optimizer", "lr", "eps", "schedule", "clip", "clip_value", "weight_decay", "warmup", "ramp")
        if name in changes
    }
    return replace(TINY, outer=replace(TINY.outer, **outer), **changes)


def same_state(a: Path, b: Path, tolerance: float = 0.0) -> bool:
    """Whether two runs end with the same parameters and the same optimizer"""
    one, other = (Run(folder).load() for folder in (a, b))
    return _same(one["meta"], other["meta"], tolerance) and _same(one["optimizer"], other["optimizer"], tolerance)


def _same(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key], tolerance) for key in a)
    return torch.allclose(a, b, rtol=0, atol=tolerance) if isinstance(a, Tensor) else bool(a == b)


def start(job: dict[str, Any], rank: int = 0, ranks: int = 1, port: int = 0) -> "subprocess.Popen[str]":
    """Run `main` below with `job` in a process of its own"""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    environment |= {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "tests.train.fewshot.helpers", json.dumps(job, default=str)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)


def job(config: FewShot, folder: Path, **more: Any) -> dict[str, Any]:
    return {"config": to_plain(config), "folder": str(folder), **more}


def main(job: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    remembered.load = loading(stripes)  # type: ignore[assignment]
    config, folder = from_plain(FewShot, job["config"]), Path(job["folder"])
    if "dies_at" in job and os.environ["RANK"] == job["dying_rank"]:
        _die_at(job["dies_at"])
    if "stopped_at" in job and os.environ["RANK"] == job["asked_rank"]:
        _stop_at(job["stopped_at"])
    if job.get("as_unit"):
        update.why_not_captured = lambda *of: None
        captured_update.unit = lambda step, device: Captured(step, again)  # type: ignore[assignment, misc]
    try:
        with started_ranks(False, timedelta(seconds=20)) as ranks:
            if folder.exists():
                resume(folder, changes=job.get("changes"), ranks=ranks)
            else:
                train(config, folder, ranks=ranks)
    except MetastepError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def again(run: Callable[[], None]) -> Callable[[], None]:
    """A recorder that needs no GPU"""
    run()  # as a recorder warms up
    return run


def _die_at(iteration: int) -> None:
    _when_drawing(iteration, lambda: os.kill(os.getpid(), signal.SIGKILL))


def _stop_at(iteration: int) -> None:
    _when_drawing(iteration, lambda: os.kill(os.getpid(), signal.SIGINT))


def _when_drawing(iteration: int, act: Callable[[], None]) -> None:
    draw = evaluate.Sampler.__call__

    def acting(self: evaluate.Sampler, k: int, tasks: int, first: int = 0) -> Any:
        if k == iteration:
            act()
        return draw(self, k, tasks, first)

    evaluate.Sampler.__call__ = acting  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    run_rank(lambda: main(json.loads(sys.argv[1])))
