"""kill -9 at random moments: the run ends with the same weights. The program imports once and forks what is killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.fewshot.helpers import ROOT

pytestmark = pytest.mark.kills

PROGRAM = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from metastep.train.fewshot import sampling
from metastep.train.fewshot.train import resume, train
from tests.train.fewshot.helpers import loading, same_state, stripes, tiny
from metastep.train.run import Run

torch.set_num_threads(1)
sampling.load = loading(stripes)
folder, kills = Path(sys.argv[1]), int(sys.argv[2])
train(tiny(iterations=2), folder / "first")  # torch loads much of itself at the first step
began = time.perf_counter()
train(tiny(iterations=30), folder / "whole")
duration = time.perf_counter() - began

def go_on(run):
    resume(run) if run.joinpath("config.json").exists() else train(tiny(iterations=30), run)

moments, killed = random.Random(0), 0
for _ in range(kills):
    child = os.fork()
    if child == 0:
        sys.stderr = open(os.devnull, "w")
        go_on(folder / "broken")
        os._exit(0)
    time.sleep(moments.uniform(0, 1.5 * duration / kills))
    os.kill(child, signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
reached = Run(folder / "broken").load()["trained"]["iterations"] if Run(folder / "broken").last.is_file() else 0
go_on(folder / "broken")
print(killed, same_state(folder / "whole", folder / "broken"), reached, round(duration, 2))
"""


def test_killed_at_random_moments_a_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    killed, same, *rest = done.stdout.split()
    assert int(killed) >= 2, done.stdout
    assert same == "True", rest
