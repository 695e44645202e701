"""Runs beside others end as they would have alone, bit for bit on a CPU."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import metastep as ms
from metastep.train.config import Validation
from metastep.train.fewshot.sampling import Sampler
from metastep.train.fewshot.train import resume, resume_in_turns, train, train_in_turns
from metastep.train.metrics import read_metrics
from metastep.train.run import Run
from study.together import together
from tests.train.fewshot.helpers import TINY, same_state, tiny

CONFIGS = {
    "shared steps": TINY,
    "with noise": replace(tiny(iterations=6), method=ms.methods.ESMAML(), seed=1),
    "precise": replace(tiny(iterations=7), method=ms.MAML(), precision="float64", seed=2),
    "first order": replace(TINY, method=ms.FOMAML(), seed=3, log_every=5),
}


def interrupt_at(iteration: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Ctrl-C were pressed while the run with that seed draws this batch"""
    draw = Sampler.__call__

    def drawing(self: Sampler, k: int, tasks: int, first: int = 0) -> Any:
        if (k, self.seed) == (iteration, seed):
            monkeypatch.setattr(Sampler, "__call__", draw)
            os.kill(os.getpid(), signal.SIGINT)
        return draw(self, k, tasks, first)

    monkeypatch.setattr(Sampler, "__call__", drawing)


def test_beside_others_stopped_and_resumed_a_run_ends_as_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, config in CONFIGS.items():
        train(config, tmp_path / "alone" / name)

    interrupt_at(3, 1, monkeypatch)
    folders = {name: tmp_path / "together" / name for name in CONFIGS}
    stopped = list(together((train_in_turns(CONFIGS[name], folder) for name, folder in folders.items()), 3))
    assert [trained.iterations for trained in stopped] == [4, 4, 5]  # and the last one was not begun
    assert [trained.beside for trained in stopped] == [2, 2, 2]

    last = list(CONFIGS)[-1]
    assert not folders[last].exists()
    works = [
        resume_in_turns(folder) if name != last else train_in_turns(CONFIGS[name], folder)
        for name, folder in folders.items()
    ]
    ends = list(together(works, 2))
    assert sorted(trained.iterations for trained in ends) == [6, 7, 12, 12]
    for name, folder in folders.items():
        assert same_state(tmp_path / "alone" / name, folder), name
        rows = [metrics_of(where) for where in (tmp_path / "alone" / name, folder)]
        assert rows[0] == rows[1]
        assert len(rows[0]) > 1


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """Without times, and without those about how a part of a run was computed"""
    rows = read_metrics(Run(run).metrics_path)
    return [{**row, "seconds": None} for row in rows if row["kind"] not in ("engine", "environment")]


def test_settings_of_the_process_are_made_again_after_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, seen = Sampler.__call__, set()

    def drawing(self: Sampler, k: int, tasks: int, first: int = 0) -> Any:
        if tasks == TINY.tasks:
            seen.add((self.seed, torch.get_num_threads()))
        return draw(self, k, tasks, first)

    monkeypatch.setattr(Sampler, "__call__", drawing)
    configs = [replace(tiny(iterations=2), seed=threads, threads=threads) for threads in (1, 2)]
    list(together((train_in_turns(config, tmp_path / str(config.seed)) for config in configs), 2))
    assert seen == {(1, 1), (2, 2)}


def test_alone_a_run_says_so(tmp_path: Path) -> None:
    assert train(tiny(iterations=2), tmp_path / "run").beside == 0
    assert resume(tmp_path / "run").beside == 0


def test_time_is_that_of_all_while_they_share(tmp_path: Path) -> None:
    began = time.perf_counter()
    configs = [replace(tiny(iterations=6), seed=seed, validation=Validation(0)) for seed in (0, 1)]
    ends = list(together((train_in_turns(config, tmp_path / str(config.seed)) for config in configs), 2))
    assert sum(end.seconds for end in ends) > 1.2 * (time.perf_counter() - began)
