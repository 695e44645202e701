"""One loop for both jobs: how runs stop, die, go on, and what is kept of them."""

import errno
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from metastep.errors import MetastepError, NonFiniteError
from metastep.step.ranks import Ranks
from metastep.train import io, remembered
from metastep.train.io import CheckpointError
from metastep.train.loop import train
from metastep.train.record import Metrics, read_metrics
from metastep.train.run import Run
from tests.train.fewshot.helpers import ROOT
from tests.train.loop_helpers import (
    FEW_SHOT,
    FROM_NOTHING,
    Case,
    breaks,
    checkpoint,
    loading,
    poison,
    press,
    rows,
    same,
    same_runs,
    with_source,
)


@pytest.fixture(autouse=True)
def _stripes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "load", loading)
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def transfer(tmp_path_factory: pytest.TempPathFactory) -> Case:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remembered, "load", loading)
        return with_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(params=["few-shot", "transfer"])
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = FEW_SHOT if request.param == "few-shot" else request.getfixturevalue("transfer")
    return found


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that nothing happened to, by the job"""
    return {}


@pytest.fixture
def whole(case: Case, wholes: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = case.config.job
    if name not in wholes:
        wholes[name] = tmp_path_factory.mktemp(name) / "whole"
        case.train(wholes[name])
    return wholes[name]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stopped_at", [0, 4, 5])  # the first iteration; the middle of the second epoch, and its end
def test_stopped_anywhere_a_run_ends_as_if_it_had_not_been(
    stopped_at: int, number: signal.Signals, case: Case, whole: Path, tmp_path: Path
) -> None:
    with case.before(stopped_at, press(number)):
        stopped = case.train(tmp_path / "run")
    assert (stopped.iterations, stopped.finished) == (stopped_at + 1, False)  # that iteration is finished and kept
    assert checkpoint(tmp_path / "run")["trained"]["iterations"] == stopped_at + 1
    with case.before(7, press(number)):
        assert case.resume(tmp_path / "run").iterations == 8
    assert case.resume(tmp_path / "run").finished
    assert same_runs(whole, tmp_path / "run")
    before = checkpoint(tmp_path / "run")
    assert case.resume(tmp_path / "run").iterations == case.iterations  # nothing is left to do
    assert same(before, checkpoint(tmp_path / "run"))


def test_a_run_that_broke_goes_on_from_its_last_checkpoint(case: Case, whole: Path, tmp_path: Path) -> None:
    with case.before(7, breaks), pytest.raises(RuntimeError, match="the machine broke"):
        case.train(tmp_path / "run")
    kept = checkpoint(tmp_path / "run")["trained"]["iterations"]
    assert 0 < kept <= 7
    assert case.resume(tmp_path / "run").finished
    assert same_runs(whole, tmp_path / "run")


def test_a_run_without_a_checkpoint_starts_again(case: Case, whole: Path, tmp_path: Path) -> None:
    with case.before(0, breaks), pytest.raises(RuntimeError, match="the machine broke"):
        case.train(tmp_path / "run")
    assert not Run(tmp_path / "run").last.exists()
    assert case.resume(tmp_path / "run").finished
    assert same_runs(whole, tmp_path / "run")


def test_checkpoints_come_by_time_and_the_best_state_waits_for_them(
    case: Case, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, save = [], Run.save
    monkeypatch.setattr(Run, "save", lambda *given: saved.append(save(*given)))
    case.train(tmp_path / "run", checkpoint_seconds=1e6)
    assert len(saved) == 1  # the last
    assert same_runs(whole, tmp_path / "run")


def test_numbers_that_are_not_finite_stop_a_run_and_its_last_good_state_is_kept(
    case: Case, whole: Path, tmp_path: Path
) -> None:
    """Also where the checkpoint before it is long ago: the best state is written then"""
    for seconds in (0.0, 1e6):
        run = tmp_path / str(seconds)
        with case.before(7, poison), pytest.raises(NonFiniteError) as stopped:
            case.train(run, checkpoint_seconds=seconds)
        kept = checkpoint(run)["trained"]["iterations"]
        assert 3 <= kept <= 7
        assert f"The last good checkpoint, of iteration {kept}, is kept in '{run}'." in str(stopped.value)
        assert case.resume(run).finished
        assert same_runs(whole, run)


def test_without_a_checkpoint_that_is_told_too(case: Case, tmp_path: Path) -> None:
    with case.before(0, poison), pytest.raises(NonFiniteError, match="There was no checkpoint yet"):
        case.train(tmp_path / "run")
    assert not Run(tmp_path / "run").last.exists()


def test_the_last_two_generations_are_kept(case: Case, tmp_path: Path) -> None:
    case.train(tmp_path / "run")
    run = Run(tmp_path / "run")
    run.last.write_bytes(run.last.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match=r"damaged or cut short .* is 'previous.safetensors'"):
        case.resume(run.folder)
    run.previous.replace(run.last)
    assert case.resume(run.folder).finished


def test_a_checkpoint_of_something_else_is_refused(case: Case, transfer: Case, tmp_path: Path) -> None:
    case.train(tmp_path / "run")
    other = transfer if case.job is FEW_SHOT.job else FEW_SHOT
    other.train(tmp_path / "other")
    Run(tmp_path / "run").last.write_bytes(Run(tmp_path / "other").last.read_bytes())
    with pytest.raises(CheckpointError, match=r"is no checkpoint of|does not fit the net"):
        case.resume(tmp_path / "run")


def test_one_writer_one_run_one_folder(case: Case, tmp_path: Path) -> None:
    with case.before(0, press(signal.SIGTERM)):
        case.train(tmp_path / "run")
    with pytest.raises(MetastepError, match="holds a run already"):
        case.train(tmp_path / "run")
    with Run(tmp_path / "run").lock(), pytest.raises(MetastepError, match="is writing this run"):
        case.resume(tmp_path / "run")
    with pytest.raises(MetastepError, match="is not there"):
        case.resume(tmp_path / "absent")


def test_what_cannot_be_trained_leaves_no_folder(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(MetastepError, match="PyTorch sees no GPU"):
        case.train(tmp_path / "run", device="cuda")
    assert not (tmp_path / "run").exists()


def test_seeds_make_runs_and_nothing_else_does(case: Case, tmp_path: Path) -> None:
    for name, noise, seed in (("a", 5, 0), ("b", 6, 0), ("c", 6, 1)):
        torch.manual_seed(noise)
        case.train(tmp_path / name, seed=seed)
    assert same_runs(tmp_path / "a", tmp_path / "b")
    assert not same(checkpoint(tmp_path / "a"), checkpoint(tmp_path / "c"))


def test_rows_say_how_far_and_how_well(case: Case, whole: Path) -> None:
    validated = [row for row in rows(whole) if row["kind"] == "validation"]
    steps = [4, 8, 12] if case is FEW_SHOT else [3, 6, 9]
    assert [row["step"] for row in validated] == steps
    best = max(row["validation_accuracy"] for row in validated)
    first = next(row for row in validated if row["validation_accuracy"] == best)  # the first of equals
    for which in ("last", "best"):
        trained = Run(whole).load(which)["trained"]  # type: ignore[arg-type]
        assert (trained["best"], trained["best_at"], trained["test"]) == (
            best,
            first["step"],
            first.get("test_accuracy"),
        )
    assert Run(whole).load("best")["trained"]["iterations"] == first["step"]
    assert all("seconds" in row for row in rows(whole))


@pytest.mark.parametrize("stopped_at", [0, 1])  # the source has two iterations
def test_a_run_that_is_stopped_while_its_source_is_trained(stopped_at: int, tmp_path: Path) -> None:
    FROM_NOTHING.train(tmp_path / "whole")
    source = replace(FROM_NOTHING, iterations=2)
    with source.before(stopped_at, press(signal.SIGINT)):
        stopped = FROM_NOTHING.train(tmp_path / "run")
    assert stopped.source is not None
    assert (stopped.iterations, stopped.source.iterations, stopped.source.total) == (0, stopped_at + 1, 2)
    assert (tmp_path / "run" / "source" / "net.safetensors").exists() == (stopped_at == 1)
    assert not Run(tmp_path / "run").last.exists()
    assert FROM_NOTHING.resume(tmp_path / "run").finished
    assert same_runs(tmp_path / "whole", tmp_path / "run")


def test_a_transfer_run_is_made_by_one_process(transfer: Case, tmp_path: Path) -> None:
    with pytest.raises(MetastepError, match="made by one process, and there are 2"):
        train(transfer.config, tmp_path / "run", ranks=Ranks(0, 2))
    assert not (tmp_path / "run").exists()


@pytest.mark.kills
@pytest.mark.parametrize("job", ["few-shot", "transfer"])
def test_killed_at_random_moments_a_run_ends_as_if_it_had_not_been(job: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.train.loop_helpers", job, str(tmp_path), "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    killed, alike = done.stdout.split()
    assert int(killed) >= 2, done.stdout
    assert alike == "True", done.stdout


@pytest.mark.parametrize("name", ["metrics.jsonl", "last.safetensors", "best.safetensors"])
def test_a_disk_that_fills_up_ends_a_run_in_one_line_and_costs_nothing(
    name: str, case: Case, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    write, append = io._write_to_disk, Metrics._append

    def written(path: Path, content: bytes) -> None:
        if name in path.name and has_begun:
            raise full
        write(path, content)

    def appended(metrics: Metrics, line: bytes) -> None:
        if name == "metrics.jsonl" and has_begun:
            raise full
        append(metrics, line)

    has_begun: list[Any] = []
    with monkeypatch.context() as patch, case.before(2, has_begun.append):
        patch.setattr(io, "_write_to_disk", written)
        patch.setattr(Metrics, "_append", appended)
        with pytest.raises(MetastepError, match=r"cannot be written \(No space left on device\)") as told:
            case.train(tmp_path / "run")
    assert "\n" not in str(told.value)
    assert name in str(told.value)
    kept = "There was no checkpoint yet|The last good checkpoint, of iteration [1-3], is kept"
    assert re.search(kept, str(told.value))
    assert not list((tmp_path / "run").glob(".*.partial"))
    assert case.resume(tmp_path / "run").finished
    assert same_runs(whole, tmp_path / "run")


@pytest.mark.parametrize("name", ["metrics.jsonl", ".lock", "last.safetensors", "config.json"])
def test_a_run_never_writes_through_a_link(name: str, case: Case, tmp_path: Path) -> None:
    with case.before(1, press(signal.SIGTERM)):
        case.train(tmp_path / "run")
    victim, place = tmp_path / "victim", tmp_path / "run" / name
    place.replace(victim)
    place.symlink_to(victim)
    before = victim.read_bytes()
    with suppress(MetastepError):
        case.resume(tmp_path / "run")
    assert victim.read_bytes() == before


def test_a_folder_that_cannot_be_written_is_told(case: Case, tmp_path: Path, make_read_only: Any) -> None:
    (tmp_path / "closed").mkdir()
    make_read_only(tmp_path / "closed")
    with pytest.raises(MetastepError, match=r"'.*run': cannot be made \((Read-only file system|Permission denied)\)"):
        case.train(tmp_path / "closed" / "run")


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_a_git_that_cannot_be_run_is_no_obstacle(
    error: type[OSError], case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("METASTEP_COMMIT", raising=False)
    monkeypatch.setattr("subprocess.run", Mock(side_effect=error))
    assert case.train(tmp_path / "run").finished
    made = next(row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "environment")
    assert made["commit"].startswith("metastep ")
