"""Benchmarks that take long: Ctrl-C keeps what is done, tells nothing that is not, and the same command goes on."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from metastep.train import loop
from metastep.train.config import Transfer
from metastep.train.run import Trained
from study import results
from study.experiments import short_runs, transfer_digits, transfer_time
from study.tables import pages as tables


@pytest.fixture(autouse=True)
def _as_many_threads_as_the_machine_has() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)  # not those of a run, which a command that is called again does not know of
    yield
    torch.set_num_threads(before)


def test_short_runs_are_not_told_half_made(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment, begun = loop.environment, []

    def pressed_in_the_second(device: torch.device) -> dict[str, str]:
        begun.append(device)
        if len(begun) == 2:
            signal.raise_signal(signal.SIGINT)
        return environment(device)

    monkeypatch.setattr(short_runs, "METHODS", ("fomaml", "reptile"))
    monkeypatch.setattr(short_runs, "EPISODES", 4)
    monkeypatch.setattr(loop, "environment", pressed_in_the_second)
    monkeypatch.setattr(sys, "argv", ["short_runs", "--iterations", "2"])
    with pytest.raises(SystemExit) as stopped:
        short_runs.main()
    assert stopped.value.code == 130
    assert "Run it again to continue" in capsys.readouterr().out
    assert told() == [("fomaml", 2)]
    torch.set_num_threads(torch.get_num_threads() + 1)
    short_runs.main()
    assert told() == [("fomaml", 2), ("reptile", 2)]
    assert len(begun) == 3, "the first is not made again"


def told() -> list[tuple[str, int]]:
    return [(row["method"], row["iterations"]) for row in results.read("bench/cpu-short-runs")["rows"]]


def test_finished_seeds_of_transfer_are_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, str]] = []

    def stopped_in_the_third_run_of_seed_1(folder: Path, config: Transfer, name: str) -> Trained:
        made.append((config.seed, folder.name))
        if len(made) == number + 3:
            raise SystemExit(130)
        return Trained(1, best=0.5, test=0.5)

    def kept() -> list[Any]:
        return [(row["seed"], row["method"]) for row in results.read("bench/cpu-transfer-digits")["rows"]]

    number = 1 + len(transfer_digits.WAYS)
    monkeypatch.setattr(transfer_digits, "finished", stopped_in_the_third_run_of_seed_1)
    monkeypatch.setattr(sys, "argv", ["transfer_digits", "--seeds", "2"])
    with pytest.raises(SystemExit):
        transfer_digits.main()
    assert kept() == made[:-1]
    told = list(tables.transfer_digits("bench/cpu-transfer-digits"))
    assert (told[3].split(" | ")[4:], told[-1].split(" | ")[4:]) == (
        ["50.0", "50.0", "50.0", "0.0 |"],  # of both seeds
        ["50.0", "", "50.0", " |"],
    )
    transfer_digits.main()
    assert kept() == made[:number] + made[number + 3 :]
    assert [seed for seed, _ in kept()] == [0] * number + [1] * number


@pytest.mark.parametrize(("cut_off", "kept"), [(False, 2), (True, 1)])  # asked to stop, and killed without a word
def test_rows_of_transfer_are_kept(cut_off: bool, kept: int, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[transfer_time.Job] = []

    def stopped_in_the_second(job: transfer_time.Job, *others: Any) -> dict[str, Any]:
        measured.append(job)
        if len(measured) == 2 and cut_off:
            raise SystemExit(137)
        if len(measured) == 2:
            signal.raise_signal(signal.SIGINT)
        setting, note, method, implementation = job
        row = {"setting": setting, "implementation": implementation, "method": method, "note": note}
        return row | {"ms": float(len(measured)), "peak_mib": None}

    def told() -> list[tuple[transfer_time.Job, float]]:
        rows = results.read("bench/cpu-transfer-time")["rows"]
        return [(transfer_time.Job.of(row), row["ms"]) for row in rows]

    monkeypatch.setattr(transfer_time, "row_of", stopped_in_the_second)
    monkeypatch.setattr(sys, "argv", ["transfer_time", "--settings", "transfer-stl10"])
    with pytest.raises(SystemExit) as stopped:
        transfer_time.main()
    assert stopped.value.code == (137 if cut_off else 130)
    assert told() == [(job, 1.0 + i) for i, job in enumerate(measured[:kept])]
    first = told()
    transfer_time.main()
    assert told()[:kept] == first, "they are not measured again"
    assert len(told()) == len({job for job, _ in told()}) == 13


def test_a_row_is_known_again_whatever_its_compiler_said() -> None:
    ways = transfer_time.ways_to_run(cuda=True, pair=False, compile=True)
    assert list(transfer_time.ways_to_run(cuda=True, pair=True, compile=True)) == list(ways)[:1] == ["metastep"]
    for job in transfer_time.planned(["small"], transfer_time.VARIANTS, ways):
        note = "compiled in 20 s" if job.implementation.endswith("compiled") else job.variant
        assert transfer_time.Job.of({**job._asdict(), "note": note}) == job


def test_a_trial_with_few_epochs_is_not_taken_for_the_whole(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_digits, "finished", lambda folder, config, name: Trained(1, best=0.5, test=0.5))
    epochs = []
    for flags in (["--epochs", "1"], []):
        monkeypatch.setattr(sys, "argv", ["transfer_digits", "--seeds", "1", *flags])
        transfer_digits.main()
        content = results.read("bench/cpu-transfer-digits")
        assert ("--epochs" in content["command"]) == bool(flags)
        epochs.append({row["epochs"] for row in content["rows"]})
    assert epochs[0] == {1}
    assert 1 not in epochs[1]
