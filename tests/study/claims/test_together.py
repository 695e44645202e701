"""`python -m study claims --together N`: what one run after the other finds, several at a time find too."""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

import metastep as ms
from metastep.train import presets
from metastep.train.fewshot.evaluate import Sampler
from metastep.train.run import Run
from study import together as module
from study.claims import fewshot_runs
from study.claims.evidence import Evidence
from study.commands import app
from tests.study.claims.helpers import tiny

MAML, FIRST_ORDER, ESTIMATE = (f"omniglot-5w1s-{method}" for method in ("maml", "fomaml", "multistep4"))
SCRATCH, LEARNED = "stl10-sgd-scratch", "stl10-sgd-multistep"
CLAIMS = {"T4.17": MAML, "T4.21": FIRST_ORDER, "T4.29": ESTIMATE}


@pytest.fixture(autouse=True)
def _tiny_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("METASTEP_DATA", raising=False)
    monkeypatch.setattr(fewshot_runs, "EPISODES", 8)
    monkeypatch.setattr(module, "START", "fork")  # tiny presets go with it
    methods = {MAML: ms.MAML(), FIRST_ORDER: ms.FOMAML(), ESTIMATE: tiny().method}
    for iterations, (preset, method) in enumerate(methods.items(), 4):
        monkeypatch.setitem(presets.few_shot(), preset, tiny(iterations, method=method))


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["claims", "--only", ",".join(CLAIMS), *arguments], env={"COLUMNS": "300"})


def claim(id: str, folder: str = "results/claims") -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(folder, f"{id}.json").read_text())
    return content


def found(folder: str = "results/claims") -> list[tuple[float, float]]:
    return [(content["value"], content["interval"]) for content in (claim(id, folder) for id in CLAIMS)]


def position(preset: str) -> int | None:
    there = Evidence(Path("runs", "reproduce"), Path()).position(preset, 0)
    return there and there.done


def timer_fires_at(iteration: int, processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the process that all runs belong to, when that many are there; each waits until it is told so"""
    draw, all_of_them, there = Sampler.__call__, os.getpid(), Path("there").absolute()
    there.mkdir()

    def drawing(self: Sampler, k: int, tasks: int, first: int = 0) -> Any:
        if k == iteration:
            (there / str(os.getpid())).touch()
            wait_until(lambda: len(list(there.iterdir())) == processes)
            os.kill(all_of_them, signal.SIGALRM)
            wait_until(lambda: signal.getsignal(signal.SIGTERM).__self__.requested)  # type: ignore[union-attr]
        return draw(self, k, tasks, first)

    monkeypatch.setattr(Sampler, "__call__", drawing)


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)


def test_together_finds_what_one_after_the_other_does_and_says_that_the_device_was_shared() -> None:
    assert call("--runs", "alone", "--out", "claims-alone").exit_code == 0
    done = call("--together", "2")
    assert done.exit_code == 0, done.output
    assert found() == found("claims-alone")
    assert claim("T4.29", "claims-alone")["note"] == "Trained in float32. The checkpoint is the last."
    assert claim("T4.29")["note"].endswith("the last. Seconds are those of a device that up to 2 runs shared.")
    for preset in CLAIMS.values():
        one, other = (Run(Path(runs, f"{preset}-seed0")).load()["meta"] for runs in ("alone", "runs/reproduce"))
        assert all(one[name].equal(other[name]) for name in one)


def test_the_end_of_the_budget_keeps_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("--runs", "alone", "--out", "claims-alone").exit_code == 0
    with monkeypatch.context() as patch:
        timer_fires_at(2, 2, patch)
        stopped = call("--together", "2", "--budget", "1000")
    assert stopped.exit_code == 130, stopped.output
    assert stopped.output.count("the same command continues") == 2
    begun = sorted(position(preset) or 0 for preset in CLAIMS.values())
    assert begun == [0, 3, 3]  # the iteration is finished and kept; the third was not begun
    assert {claim(id)["verdict"] for id in CLAIMS} == {"not run"}
    assert call("--together", "3").exit_code == 0
    assert found() == found("claims-alone")


def test_one_that_fails_leaves_its_place_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    wild = presets.few_shot()[FIRST_ORDER]
    monkeypatch.setitem(presets.few_shot(), FIRST_ORDER, replace(wild, inner=replace(wild.inner, lr=1e30), steps=8))
    Run.create(taken := Path("runs", "reproduce", f"{MAML}-seed0"), presets.few_shot()[MAML])
    with Run.open(taken).lock():
        failed = call("--together", "2")
    assert failed.exit_code == 2
    assert "2 of the runs could not continue." in failed.output
    assert claim("T4.21")["verdict"] == "not run"
    assert "update 1" in claim("T4.21")["note"]
    assert claim("T4.17")["note"] == "Its runs were not made yet."  # another process is at it
    assert claim("T4.29")["verdict"] == "short"


def test_one_that_finds_no_memory_goes_on_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Sampler.__call__

    def drawing(self: Sampler, k: int, tasks: int, first: int = 0) -> Any:
        if k == 5:  # the longest run alone comes so far
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return draw(self, k, tasks, first)

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "__call__", drawing)
        failed = call("--together", "3")
    assert failed.exit_code == 2
    assert "the device has too little memory for it (--together 3). Lower that" in failed.output
    assert sorted(claim(id)["verdict"] for id in CLAIMS) == ["not run", "short", "short"]
    assert call("--together", "1").exit_code == 0
    assert len(found()) == 3


def test_an_error_that_nobody_expected_releases_all(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Sampler.__call__

    def drawing(self: Sampler, k: int, tasks: int, first: int = 0) -> Any:
        if k == 2:
            raise ZeroDivisionError
        return draw(self, k, tasks, first)

    monkeypatch.setattr(Sampler, "__call__", drawing)
    assert isinstance(call("--together", "3").exception, ZeroDivisionError)
    for preset in CLAIMS.values():
        if Run.is_there(folder := Path("runs", "reproduce", f"{preset}-seed0")):
            with Run.open(folder).lock():
                pass


@pytest.fixture
def _tiny_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cells of table 2 on digits, one of which has its source trained first"""
    scratch, learned = (presets.transfer()[f"digits-sgd-{method}"] for method in ("scratch", "multistep"))
    scratch = replace(scratch, epochs=12, device="cpu")
    learned = replace(learned, epochs=2, device="cpu", source=replace(learned.source, epochs=1))
    for preset, config in ((SCRATCH, scratch), (LEARNED, learned)):
        monkeypatch.setitem(presets.transfer(), preset, config)


@pytest.mark.usefixtures("_tiny_transfer")
def test_transfer_runs_share_the_device_too(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ("--only", "T4.17,T2.2,T2.14", "--seeds", "1")
    assert call(*wanted, "--runs", "alone", "--out", "claims-alone").exit_code == 0
    with monkeypatch.context() as patch:
        timer_fires_at(2, 1, patch)  # the transfer runs draw no episodes
        stopped = call(*wanted, "--together", "3", "--budget", "1000")
    assert stopped.exit_code == 130, stopped.output
    assert stopped.output.count("the same command continues") == 3
    done = call(*wanted, "--together", "2")
    assert done.exit_code == 0, done.output
    for id in ("T2.2", "T2.14"):
        ours, alone = claim(id), claim(id, "claims-alone")
        assert ours["value"] == alone["value"]
        assert ours["note"] == f"{alone['note']} Seconds are those of a device that up to 3 runs shared."
    for preset in (SCRATCH, LEARNED):
        files = (Path(runs, f"{preset}-seed0", "net.safetensors") for runs in ("alone", "runs/reproduce"))
        one, other = map(load_file, files)
        assert all(one[name].equal(other[name]) for name in one)
