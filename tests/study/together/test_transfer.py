"""Transfer runs beside others end as they would have alone, bit for bit on a CPU."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from metastep.core.optimizers import SGD, Adam
from metastep.data.batches import Batches
from metastep.errors import NonFiniteError
from metastep.step.compiler import compiling, program_cache
from metastep.train.config import Scratch, Source, Target, Transfer, WhatAndWhere
from metastep.train.metrics import read_metrics
from metastep.train.run import Run
from metastep.train.transfer import epoch as epochs, reading
from metastep.train.transfer.epoch import Trained
from metastep.train.transfer.train import resume_in_turns, train, train_in_turns
from metastep.train.turns import Turns
from study.together import together
from tests.train.transfer.train_helpers import (
    TEACHER,
    TINY,
    capture,
    checkpoint,
    loading,
    same,
    stop_at,
    tiny,
    with_source,
)

pytestmark = pytest.mark.usefixtures("_stripes")

FORGETFUL = Target("tests.train.transfer.train_helpers:forgetful", ("body",))


def configs(source: Path) -> dict[str, Transfer]:
    return {
        "traced": with_source(source, compile=True, batch=7),  # once: all batches are alike
        "with noise": with_source(source, net=FORGETFUL, seed=1, gradient_difference=2),
        "source first": tiny(WhatAndWhere(window=1), seed=2, inner=Adam(1e-2)),
        "precise": tiny(Scratch(), seed=3, precision="float64", epochs=2),
    }


@pytest.fixture(scope="module")
def alone(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each of them was trained with nothing beside it"""
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "load", loading)
        for name, config in configs(source).items():
            train(config, folder / name)
    return folder


def begun(config: Transfer, folder: Path) -> Turns[Trained]:
    """Resumed, if it was"""
    if not (folder / "config.json").is_file():
        return train_in_turns(config, folder)
    net = TEACHER if config.needs_source else None
    return resume_in_turns(folder, source_net=net, target_net=config.net.name)


@pytest.mark.parametrize("queued", [1, 10])
def test_stopped_and_resumed_beside_others_a_run_ends_as_alone(
    queued: int,
    source: Path,
    alone: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(epochs, "QUEUED", queued)
    runs, folders = configs(source), {name: tmp_path / name for name in configs(source)}
    stop_at(monkeypatch, 4, seed=1)
    stopped = list(together((begun(config, folders[name]) for name, config in runs.items()), 3))
    assert len(stopped) == 3  # and the last one was not begun
    assert 5 in [3 * trained.epoch + trained.batch for trained in stopped]
    assert all(trained.epoch < 3 for trained in stopped)

    capsys.readouterr()
    ends = list(together((begun(config, folders[name]) for name, config in runs.items()), 2))
    assert sorted(trained.epoch for trained in ends) == [2, 3, 3, 3]
    assert {trained.beside for trained in ends} <= {1, 2}
    shown = capsys.readouterr().err
    for name, folder in folders.items():
        assert f"{name}  step" in shown
        assert same(checkpoint(alone / name), checkpoint(folder)), name
        rows = [metrics_of(where) for where in (alone / name, folder)]
        assert rows[0] == rows[1]
        assert len(rows[0]) > 3
    nested = [checkpoint(where / "source first" / "source") for where in (alone, tmp_path)]
    assert same(*nested)


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """Without times, and without those about how a part of a run was computed"""
    rows = read_metrics(Run(run).metrics_path)
    return [{**row, "seconds": None} for row in rows if row["kind"] not in ("engine", "environment", "layers")]


def test_others_are_under_way_while_a_source_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source of two iterations, beside a run of many"""
    drawn, draw = [], Batches.batch

    def batch(self: Batches, epoch: int, i: int) -> Any:
        if self.training:
            drawn.append((self.seed, self.size))
        return draw(self, epoch, i)

    monkeypatch.setattr(Batches, "batch", batch)
    works = [
        train_in_turns(tiny(Scratch(), seed=7), tmp_path / "a"),
        train_in_turns(TINY, tmp_path / "b"),
    ]
    list(together(works, 2))
    first, last = (place for place, (seed, size) in enumerate(drawn) if size == 64)
    assert (7, 8) in drawn[first:last]


def test_settings_of_the_process_are_made_again_after_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "QUEUED", 1)
    draw, judge, seen = Batches.batch, epochs.judge, set()

    def batch(self: Batches, epoch: int, i: int) -> Any:
        if self.training:
            seen.add(("trained", self.seed, torch.get_num_threads()))
        return draw(self, epoch, i)

    def judged(net: Any, params: Any, buffers: Any, part: Batches, dtype: torch.dtype) -> Any:
        seen.add(("judged", {torch.float32: 1, torch.float64: 2}[dtype], torch.get_num_threads()))
        return judge(net, params, buffers, part, dtype)

    monkeypatch.setattr(Batches, "batch", batch)
    monkeypatch.setattr(epochs, "judge", judged)
    scratch = tiny(Scratch(), epochs=2)
    runs = [replace(scratch, seed=1, threads=1), replace(scratch, seed=2, threads=2, precision="float64")]
    list(together((train_in_turns(config, tmp_path / str(config.seed)) for config in runs), 2))
    assert seen == {(what, each, each) for what in ("trained", "judged") for each in (1, 2)}


def test_one_that_left_the_finite_numbers_says_it_and_keeps_its_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs, "QUEUED", 1)
    wild = tiny(Scratch(), inner=SGD(1e30), seed=1)
    works = [train_in_turns(config, tmp_path / str(config.seed)) for config in (tiny(Scratch()), wild)]
    with pytest.raises(NonFiniteError, match=r"epoch 1, by batch 3 of 3"):
        list(together(works, 2))
    for seed in ("0", "1"):
        with Run.open(tmp_path / seed).lock():
            pass


def test_what_others_take_counts_as_its_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "QUEUED", 1)
    scratch = tiny(Scratch(), epochs=2)
    assert train(scratch, tmp_path / "alone").beside == 0

    def slow(turns: int) -> Turns[Trained]:
        for _ in range(turns):
            time.sleep(0.05)
            yield
        return Trained()

    trained = max(together([train_in_turns(scratch, tmp_path / "run"), slow(20)], 2), key=lambda end: end.epoch)
    assert trained.beside == 1
    assert trained.seconds > 0.05 * 6  # a pause in each iteration


@pytest.mark.parametrize("captured", [False, True])
def test_seeds_share_a_trace_and_end_as_alone(captured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a source of its own, which the trace holds; and, captured as on a GPU, memory of its own"""
    if captured:
        capture(monkeypatch)
    traces = Mock(wraps=compiling.traced)
    monkeypatch.setattr(compiling, "traced", traces)
    source = Source("resnet8", dataset="stripes", epochs=1)
    config = tiny(source=source, net=Target("vgg4"), batch=7, epochs=1, compile=True)
    seeds = [replace(config, seed=seed) for seed in (0, 1)]
    program_cache._MADE.clear()
    for turns in together((train_in_turns(each, tmp_path / f"{each.seed}") for each in seeds), 2):
        assert turns.epoch == 1
    assert traces.call_count == 2  # the source's training, and the target's
    program_cache._MADE.clear()
    train(seeds[1], tmp_path / "alone")
    assert traces.call_count == 4
    assert same(checkpoint(tmp_path / "1"), checkpoint(tmp_path / "alone"))
    assert not same(checkpoint(tmp_path / "0"), checkpoint(tmp_path / "1"))
