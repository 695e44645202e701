"""Kill runs by kill -9 at random moments after their first checkpoint, resume them, and compare with runs left alone.

One interpreter imports everything and forks what is killed. A run that comes to its end before its time is compared,
and the next one begins. Weights, optimizers, positions and metrics must be equal bit for bit.
"""

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metastep.train import presets
from metastep.train.config import Config, FewShot
from metastep.train.loop import resume, train
from metastep.train.record import read_metrics
from metastep.train.run import Run, how_far
from study import results
from study.experiments import arguments

FEW_SHOT, TRANSFER = "glyphs-5w1s-multistep4", "digits-sgd-multistep"
PART = 0.2  # of the time that a whole run takes: the longest time between a resume and its death
ABOUT = ("engine", "environment", "layers")  # rows about how a part of a run was computed


def config_of(preset: str) -> Config:
    """A run of some seconds that keeps a checkpoint at every look"""
    usual = presets.preset(preset)
    if isinstance(usual, FewShot):
        validation = replace(usual.validation, every=10, episodes=10)
        return replace(usual, iterations=60, validation=validation, checkpoint_seconds=0.0, device="cpu")
    source = replace(usual.source, epochs=1)
    return replace(usual, epochs=12, source=source, checkpoint_seconds=0.0, device="cpu", threads=1)


def killed(preset: str, kills: int, folder: Path) -> dict[str, Any]:
    """Kill runs of a preset so often in all, and say how they ended"""
    config = config_of(preset)
    train(replace(config, seed=1), folder / "first")  # torch loads much of itself at the first step
    began = time.perf_counter()
    train(config, folder / "whole")
    duration = time.perf_counter() - began
    moments, deaths, runs, equal = random.Random(0), list[int](), 0, 0
    while len(deaths) < kills:
        run, runs = folder / f"run{runs}", runs + 1
        while len(deaths) < kills and not (Run.is_there(run) and how_far(Run(run)).iterations == _total(folder)):
            if _killed(config, run, moments.uniform(0, PART * duration)):
                deaths.append(how_far(Run(run)).iterations)
        _go_on(config, run)
        equal += same_runs(folder / "whole", run)
    return {
        "preset": preset, "iterations": _total(folder), "kills": len(deaths), "runs": runs, "equal": equal,
        "killed_at": deaths, "seconds": round(duration, 2),
    }  # fmt: skip


def _total(folder: Path) -> int:
    return how_far(Run(folder / "whole")).iterations


def _killed(config: Config, run: Path, seconds: float) -> bool:
    """Whether the run was killed, so many seconds after it began or its first checkpoint; or ended before"""
    child = os.fork()
    if child == 0:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - this process ends here
        _go_on(config, run)
        os._exit(0)
    while not (Run(run).last.is_file() or _ended(child)):
        time.sleep(0.01)
    time.sleep(seconds)
    if _ended(child):
        return False
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _go_on(config: Config, run: Path) -> None:
    resume(run) if Run.is_there(run) else train(config, run)


def same_runs(a: Path, b: Path) -> bool:
    """Whether two runs left the same rows and checkpoints, but for times"""
    return _rows(a) == _rows(b) and all(_same(*(_tree(run, which) for run in (a, b))) for which in ("last", "best"))


def _rows(run: Path) -> list[dict[str, Any]]:
    return [row | {"seconds": 0} for row in read_metrics(Run(run).metrics_path) if row["kind"] not in ABOUT]


def _tree(run: Path, which: Any) -> dict[str, Any]:
    tree = Run(run).load(which)
    tree["trained"]["seconds"] = 0
    return tree


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


def rows(few_shot: int, transfer: int) -> Iterator[dict[str, Any]]:
    """One for each job"""
    for preset, kills in ((FEW_SHOT, few_shot), (TRANSFER, transfer)):
        with tempfile.TemporaryDirectory() as folder:
            row = killed(preset, kills, Path(folder))
        print(f"{preset}: {row['equal']} of {row['runs']} runs equal after {row['kills']} deaths", flush=True)
        yield row


def main() -> None:
    """Kill, compare, and write the results."""
    parser = arguments.parser("kills", __doc__)
    parser.add_argument("--few-shot", type=int, default=30, help="deaths of few-shot runs")
    parser.add_argument("--transfer", type=int, default=10, help="deaths of transfer runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = list(rows(options.few_shot, options.transfer))
    print(results.write("kills", arguments.command("kills", options), found))
    if any(row["equal"] < row["runs"] for row in found):
        sys.exit(1)
