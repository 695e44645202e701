"""A run's folder as a whole: made, opened, locked, stopped."""

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from metastep.errors import MetastepError
from metastep.train.config import Config, FewShot, Transfer
from metastep.train.io import CheckpointError, ConfigError, LockError, RunError, require_no_link
from metastep.train.record import Metrics
from metastep.train.run import Run, locked, write_config
from metastep.train.stop import stop_on_signals

CONFIG = FewShot(seed=5)


def contents(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_run_is_made_and_opened_again(tmp_path: Path) -> None:
    Run.create(tmp_path / "a" / "b", CONFIG)
    run = Run.open(tmp_path / "a" / "b")
    assert type(run.config(Config)) is FewShot
    assert run.config(FewShot) == CONFIG
    with pytest.raises(ConfigError, match="b': is a few-shot run, not a transfer run"):
        run.config(Transfer)


def test_last_and_best(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    with pytest.raises(CheckpointError, match="No such file"):
        run.load()
    with pytest.raises(CheckpointError, match=r"has no checkpoint yet\. Wait for the first"):
        run.taken("best")
    with run.lock():
        run.save({"w": torch.ones(1), "step": 1})
        assert run.taken("best") == "last"
        run.save({"w": torch.ones(1), "step": 1}, best={"w": torch.ones(1), "step": 0})
        assert run.taken("best") == "best"
        run.save({"w": torch.ones(1), "step": 2})
    assert (run.load()["step"], run.load("best")["step"]) == (2, 0)


def test_best_is_written_before_last_says_that_it_was_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(tmp_path, CONFIG)
    run.save({"best": 1}, best={"best": 1})
    calls: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append(Path(b).name), replace(a, b)))
    run.save({"best": 2}, best={"best": 2})
    assert calls == ["best.safetensors", "previous.safetensors", "last.safetensors"]


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(RunError, match=r"holds other files \('thesis.txt'\).*nothing was changed"):
        Run.create(tmp_path, CONFIG)
    assert contents(tmp_path) == ["thesis.txt"]
    with pytest.raises(RunError, match="holds no run"):
        Run.open(tmp_path)


def test_folders_that_cannot_be_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="Not a directory"):
        Run.create(tmp_path / "file", CONFIG)
    with pytest.raises(RunError, match="Not a directory"):
        Run.create(tmp_path / "file" / "below", CONFIG)
    with pytest.raises(RunError, match="is not there"):
        Run.open(tmp_path / "missing")
    Run.create(tmp_path / "run", CONFIG)
    with pytest.raises(RunError, match=r"holds a run already.*Resume that one"):
        Run.create(tmp_path / "run", CONFIG)


def test_a_read_only_folder_is_refused(tmp_path: Path, make_read_only: Any) -> None:
    make_read_only(tmp_path)
    for folder in (tmp_path, tmp_path / "below"):
        with pytest.raises(RunError, match="Choose a folder that you can write to"):
            Run.create(folder, CONFIG)


def test_what_a_killed_create_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".config.json.123.partial").write_text("{")
    Run.create(tmp_path, CONFIG)
    assert contents(tmp_path) == [".lock", "config.json"]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    with run.lock():
        with pytest.raises(LockError, match=f"process {os.getpid()} on .* is writing this run"), run.lock():
            pass
        Run.open(tmp_path)  # reading needs no lock
    with run.lock():
        pass


def test_a_lock_without_a_name(tmp_path: Path) -> None:
    with locked(tmp_path / "lock"):
        (tmp_path / "lock").write_text("")
        with pytest.raises(LockError, match="another process is writing"), locked(tmp_path / "lock"):
            pass


def test_an_error_inside_releases_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock"):
        _ = 1 / 0
    with locked(tmp_path / "lock"):
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_request(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(number)
    with stop_on_signals() as stop:
        assert not stop.requested
        signal.raise_signal(number)
        assert stop.requested
        assert stop.signal is number
    assert signal.getsignal(number) is before
    said = capfd.readouterr().err
    assert "Stopping after this step." in said
    assert ("Ctrl-C again stops at once" in said) == (number is signal.SIGINT)


def test_a_loop_finishes_its_step_and_saves() -> None:
    done, saved = [], []
    with stop_on_signals() as stop:
        for step in range(10):
            if step == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            done.append(step)
            if stop.requested:
                saved.append(step)
                break
    assert (done, saved) == ([0, 1, 2, 3], [3])


@pytest.mark.parametrize("between", [0, 1, 2])
def test_the_second_ctrl_c_stops_at_once_whatever_came_between(between: int) -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_signals():
        signal.raise_signal(signal.SIGINT)
        for _ in range(between):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_loop_within_shares_the_request() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_signals() as outer:
        with stop_on_signals():
            signal.raise_signal(signal.SIGINT)
        assert outer.requested
    assert signal.getsignal(signal.SIGINT) is before


def test_sigterm_may_come_twice_and_before_ctrl_c(capfd: pytest.CaptureFixture[str]) -> None:
    with stop_on_signals() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert capfd.readouterr().err.split("\n") == ["", "Stopping after this step.", ""]
        signal.raise_signal(signal.SIGINT)
        assert stop.signal is signal.SIGINT
        assert "Ctrl-C again stops at once" in capfd.readouterr().err


def test_in_another_thread_nothing_is_caught() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def work() -> None:
        with stop_on_signals() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "last.safetensors", "config.json"])
def test_nothing_is_written_through_a_symbolic_link(name: str, tmp_path: Path) -> None:
    victim, run = tmp_path / "victim", Run.create(tmp_path / "run", CONFIG)
    victim.write_text("precious")
    (run.folder / name).unlink(missing_ok=True)
    (run.folder / name).symlink_to(victim)
    with suppress(MetastepError), run.lock(), Metrics(run.metrics_path, 5) as metrics:
        metrics.write(6, {"kind": "train"})
        run.save({"a": 1})
        write_config(run.config_path, CONFIG)
    assert victim.read_text() == "precious"


def test_evaluations_are_not_written_through_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "evaluations").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="is a symbolic link, and what it points to is never written to"):
        require_no_link(tmp_path / "evaluations")


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    for step in (1, 2, 3):
        run.save({"step": step})
    assert run.load() == {"step": 3}
    run.last.write_bytes(run.last.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"damaged.* The checkpoint before it is 'previous\.safetensors'"):
        run.load()
    run.previous.rename(run.last)
    assert run.load() == {"step": 2}
