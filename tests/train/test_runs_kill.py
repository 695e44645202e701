"""kill -9 at every moment of a save: whatever was saved is there. `test_loop` kills at random moments.

Each program imports once and forks what is to be killed.
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
from metastep.train.io import RunError
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


HOLDER_DIES = """
import os, signal, socket, sys, time
from pathlib import Path
from metastep.train.io import LockError
from metastep.train.run import locked

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
