"""What the loop costs beside the step itself: no operation of PyTorch, and few files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from metastep.step.ranks import ALONE
from metastep.train import loop, remembered
from metastep.train.config import Validation
from metastep.train.fewshot.job import prepare
from metastep.train.loop import train
from study.counts import walk
from tests.train.fewshot.helpers import TINY, loading, stripes

QUIET = replace(TINY, validation=Validation(0), checkpoint_seconds=1e6, log_every=1_000)


@pytest.fixture(autouse=True)
def _stripes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "load", loading(stripes))
    torch.set_num_threads(1)


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations_of_a_run(iterations: int, folder: Path) -> int:
    with Operations() as operations:
        train(replace(QUIET, iterations=iterations), folder)
    return operations.count


def operations_of_steps(number: int) -> int:
    """The bare `MetaStep`, with its first call made before"""
    job = prepare(QUIET, stripes(), None, ALONE)
    job.begin(0)
    job.step()
    with Operations() as operations:
        for _ in range(number):
            job.step()
    return operations.count


def test_an_iteration_dispatches_what_the_bare_step_does(tmp_path: Path) -> None:
    short, long = (operations_of_a_run(iterations, tmp_path / str(iterations)) for iterations in (2, 5))
    assert long - short == operations_of_steps(3)


def test_a_walk_of_train_touches_few_files_of_its_room(tmp_path: Path) -> None:
    """From a configuration to a finished run, validated and kept"""
    runs = iter(range(9))

    def run() -> object:
        return train(replace(TINY, iterations=3, validation=Validation(2, 6)), tmp_path / str(next(runs)))

    assert walk(run, below=Path(loop.__file__).parent)["files"] <= 24
