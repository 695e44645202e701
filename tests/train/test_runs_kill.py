"""kill -9, at chosen and at random moments: whatever was saved is there, whatever comes after is the same.

Each program imports once and forks what is to be killed: twenty deaths in the time of one start.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.kills

Python = Callable[..., str]

AT_EVERY_MOMENT = """
import json, os, signal, sys
from pathlib import Path
import torch
from metastep.train import io as files
from metastep.train.run import Run
from metastep.train.errors import RunError
from metastep.train.config import FewShot

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

def half(path, data):
    path.write_bytes(data[: len(data) // 2])
    die()

moments = {"half written": (files, "_write_to_disk", half), "before the sync": (os, "fsync", die),
           "before the rename": (os, "replace", die), "after the rename": (files, "_sync_folder", die)}
run = Run.create(Path(sys.argv[1]), FewShot(iterations=60))
for moment, (place, name, replacement) in moments.items():
    run.save({"w": torch.zeros(1000), "step": 1})
    child = os.fork()
    if child == 0:
        with run.lock():
            setattr(place, name, replacement)
            run.save({"w": torch.ones(1000), "step": 2})
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    litter = len(list(run.folder.glob(".*.partial")))
    with run.lock():
        kept = run.load()
        print(json.dumps([moment, kept["step"], float(kept["w"].mean()), litter, sorted(os.listdir(run.folder))]))
"""


def test_killed_at_every_moment_of_a_save(python: Python, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in python(AT_EVERY_MOMENT, tmp_path / "run").splitlines()]
    files = [".lock", "config.json", "last.safetensors", "previous.safetensors"]
    assert lines == [
        ["half written", 1, 0.0, 1, files],
        ["before the sync", 1, 0.0, 1, files],
        ["before the rename", 1, 0.0, 1, files],
        ["after the rename", 2, 1.0, 0, files],
    ]


AT_RANDOM_MOMENTS = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from metastep.train.config import FewShot
from metastep.train.metrics import Metrics
from metastep.train.run import Run
from metastep.train.states import optimizer_tree, restore_optimizer

torch.set_num_threads(1)

def train(run):
    with run.lock():
        torch.manual_seed(0)
        weight = torch.zeros(200).requires_grad_()
        optimizer = torch.optim.Adam([weight], lr=0.1)
        done, best = 0, float("inf")
        if run.last.is_file():
            kept = run.load()
            done, best = kept["step"], kept["best"]
            weight.data.copy_(kept["params"]["weight"])
            restore_optimizer(optimizer, kept["optimizer"])
            torch.set_rng_state(kept["rng"])
        with Metrics(run.metrics_path, done if run.last.is_file() else None) as metrics:
            for step in range(done + 1, run.config(FewShot).iterations + 1):
                optimizer.zero_grad()
                loss = ((weight - torch.randn(200)) ** 2).mean()
                loss.backward()
                optimizer.step()
                metrics.write(step, {"loss": loss.detach()})
                if step % 4 == 0:
                    metrics.sync()
                    reached, best = loss.item() < best, min(best, loss.item())
                    run.save({"params": {"weight": weight}, "optimizer": optimizer_tree(optimizer),
                              "rng": torch.get_rng_state(), "step": step, "best": best}, best=reached)

def contents(run):
    return {path.name: path.read_bytes() for path in run.folder.iterdir() if path.name != ".lock"}

folder = Path(sys.argv[1])
train(Run.create(folder / "first", FewShot(iterations=60)))  # torch loads much of itself at the first step
whole = Run.create(folder / "whole", FewShot(iterations=60))
began = time.perf_counter()
train(whole)
duration = time.perf_counter() - began
broken = Run.create(folder / "broken", FewShot(iterations=60))
moments = random.Random(0)
killed = 0
for _ in range(20):
    child = os.fork()
    if child == 0:
        train(broken)
        os._exit(0)
    time.sleep(moments.uniform(0, duration / 10))
    os.kill(child, signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
train(broken)
print(killed, contents(broken) == contents(whole), sorted(contents(whole)), round(duration, 3))
"""


def test_killed_at_twenty_random_moments_a_run_ends_with_the_same_files(python: Python, tmp_path: Path) -> None:
    killed, same, *files = python(AT_RANDOM_MOMENTS, tmp_path).split()
    assert int(killed) >= 10  # those that are left came to their end before their time
    assert same == "True", files


HOLDER_DIES = """
import os, signal, socket, sys, time
from pathlib import Path
from metastep.train.errors import LockError
from metastep.train.lock import locked

path = Path(sys.argv[1])
ready, tell = os.pipe()
child = os.fork()
if child == 0:
    with locked(path):
        os.write(tell, b"x")
        time.sleep(60)
os.read(ready, 1)
try:
    with locked(path):
        print("both hold it")
except LockError as error:
    print(f"process {child} on {socket.gethostname()}" in str(error))
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
with locked(path):
    print("free")
"""


def test_a_lock_dies_with_its_holder(python: Python, tmp_path: Path) -> None:
    assert python(HOLDER_DIES, tmp_path / "lock").split() == ["True", "free"]
