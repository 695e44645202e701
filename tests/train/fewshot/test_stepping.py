"""`MetaStep` in training: captured steps do what eager ones do; with a recorder that needs no GPU."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import metastep as ms
from metastep.core.problems import params_of
from metastep.core.trees import norm
from metastep.errors import NonFiniteError
from metastep.step import captured_update, update
from metastep.step.capture import Captured, Unit
from metastep.step.captured_update import CapturedUpdate
from metastep.step.ranks import ALONE
from metastep.step.update import EagerUpdate
from metastep.train.config import FewShot
from metastep.train.fewshot.evaluate import Sampler
from metastep.train.fewshot.job import FewShotJob, prepare
from metastep.train.loop import resume, train
from metastep.train.record import read_metrics
from metastep.train.run import Run
from tests.train.fewshot.helpers import CARRIED, SHUFFLED, TINY, again, named_method, same_state, stripes, tiny


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU"""
    monkeypatch.setattr(update, "why_not_captured", lambda *of: None)
    monkeypatch.setattr(captured_update, "unit", lambda step, device: Captured(step, again))


def precise(config: FewShot) -> FewShot:
    """In single precision Adam enlarges rounding"""
    return replace(config, precision="float64")


def moments(saved: dict[str, Any]) -> dict[str, float]:
    state = saved["optimizer"]["state"].items()
    return {
        f"{i} {name}": float(value.double().sum()) for i, of in state for name, value in of.items() if value is not None
    }


def kinds(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [{**row, "seconds": None} for row in read_metrics(Run(folder).metrics_path) if row["kind"] == kind]


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        tiny(optimizer="sgd", lr=0.5, schedule="linear", clip_value=0.01),
        tiny(schedule="linear", eps=1e-3),
        tiny(clip=0.5, warmup=3, ramp=5),
        replace(TINY, method=ms.methods.MetaSGD(window=2)),
        replace(TINY, method=ms.methods.Reptile(), log_every=5),
        CARRIED,
        SHUFFLED,
        replace(TINY, method=ms.methods.ESMAML()),
        replace(TINY, method=ms.methods.GGSMAML()),
    ],
)
def test_one_unit_trains_as_step_by_step(config: FewShot, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    train(precise(config), tmp_path / "steps")
    request.getfixturevalue("recorded")
    train(precise(config), tmp_path / "unit")
    steps, as_unit = (Run(tmp_path / name).load() for name in ("steps", "unit"))
    torch.testing.assert_close(as_unit["meta"], steps["meta"], rtol=0, atol=1e-7)
    assert moments(as_unit) == pytest.approx(moments(steps), abs=1e-7)
    for kind in ("train", "validation"):
        ours, theirs = kinds(tmp_path / "unit", kind), kinds(tmp_path / "steps", kind)
        assert [row.keys() for row in ours] == [row.keys() for row in theirs]
        assert [row["step"] for row in ours] == [row["step"] for row in theirs]
        for a, b in zip(ours, theirs, strict=True):
            assert {**a, "seconds": 0} == pytest.approx({**b, "seconds": 0}, abs=1e-7)
    assert kinds(tmp_path / "unit", "engine")[0]["path"].endswith("; captured")
    assert kinds(tmp_path / "steps", "engine")[0]["path"].endswith("; running eagerly: CUDA graphs need a GPU")


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(
    "config",
    [
        tiny(schedule="linear"),
        tiny(optimizer="sgd", schedule="linear"),
        CARRIED,
        SHUFFLED,
        tiny(warmup=4, ramp=8),
    ],
    ids=["adam", "sgd", "carried", "shuffled", "beginning"],
)
def test_one_unit_resumes_bit_for_bit(config: FewShot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(config, tmp_path / "whole")
    stop_at = [5]

    class Asked(CapturedUpdate):
        def __call__(self, number: int, tasks: Any) -> Any:
            if number in stop_at:
                os.kill(os.getpid(), signal.SIGINT)
            return super().__call__(number, tasks)

    monkeypatch.setattr(update, "CapturedUpdate", Asked)
    assert train(config, tmp_path / "halves").iterations == 6
    stop_at.clear()
    assert resume(tmp_path / "halves").iterations == 12
    assert same_state(tmp_path / "whole", tmp_path / "halves")


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("log_every", [1, 4])
def test_an_update_that_is_not_finite_is_not_made_and_named(
    log_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = Sampler.__call__

    def poisoned(self: Sampler, k: int | Tensor, tasks: int, first: int = 0) -> Any:
        task = draw(self, k, tasks, first)
        if tasks == TINY.tasks:
            bad = torch.where(torch.as_tensor(k) == 5, torch.inf, 0.0)  # no branching on values: it is recorded
            task.support[0][2] += bad
        return task

    monkeypatch.setattr(Sampler, "__call__", poisoned)
    config = replace(TINY, log_every=log_every, checkpoint_seconds=100)
    with pytest.raises(NonFiniteError, match="update 6: task 2: the inner gradient of window 0") as caught:
        train(config, tmp_path / "run")
    assert "The last good checkpoint, of iteration 4, is kept" in str(caught.value)
    rows = kinds(tmp_path / "run", "train")
    assert [row["step"] for row in rows] == list(range(log_every, 6, log_every))


def prepared(config: FewShot) -> FewShotJob:
    job = prepare(config, stripes(), None, ALONE)
    job.begin(0)
    return job


@pytest.mark.usefixtures("recorded")
def test_learner_and_optimizer_are_behind_until_settled() -> None:
    job = prepared(TINY)
    step = job.step
    before = [p.detach().clone() for p in job.learner.meta.values()]
    for _ in range(3):
        step()
    assert all(map(torch.equal, before, job.learner.meta.values()))
    step.settle()
    assert not any(torch.equal(a, b) for a, b in zip(before, job.learner.meta.values(), strict=True) if a.dim() > 1)
    assert {float(state["step"]) for state in job.optimizer.state.values()} == {3.0}


class Waiting(TorchDispatchMode):
    """Refuses to read a number from the device, which a capture forbids"""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("schedule", ["constant", "linear"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("method", ["multi_step", "reptile", "imaml", "maml_pp", "es_maml", "ggs_maml"])
def test_nothing_in_an_update_waits_for_the_device(
    method: str, optimizer: str, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update, "why_not_captured", lambda *of: None)
    config = replace(tiny(optimizer=optimizer, schedule=schedule), method=named_method(method))
    step = prepared(config).step
    with Waiting():
        step()
    step.settle()


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("config", [replace(TINY, method=ms.methods.MetaSGD()), CARRIED], ids=["rates", "memory"])
def test_the_length_that_is_told_is_that_of_theta(
    config: FewShot, captured: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    job = prepare(config, stripes(), None, ALONE)
    whole = job.gradient(job.learner.meta, job.draw(0, config.tasks)).grad
    assert norm(whole["params"]) < norm(whole)
    if captured:
        request.getfixturevalue("recorded")
    train(replace(config, iterations=1), tmp_path / "run")
    row = kinds(tmp_path / "run", "train")[0]
    assert row["gradient_norm"] == pytest.approx(float(norm(params_of(whole))), rel=1e-5)


def test_a_cpu_runs_eagerly(request: pytest.FixtureRequest) -> None:
    step = prepared(TINY).step
    assert isinstance(step._update, EagerUpdate)
    request.getfixturevalue("recorded")
    step = prepared(TINY).step
    assert isinstance(step._update, CapturedUpdate)


@pytest.mark.usefixtures("recorded")
def test_a_unit_that_is_called_gives_what_a_recorded_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny(iterations=4), tmp_path / "run")
    monkeypatch.setattr(captured_update, "unit", lambda step, device: Unit(step))
    train(tiny(iterations=4), tmp_path / "called")
    assert same_state(tmp_path / "called", tmp_path / "run")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", ["es_maml", "ggs_maml"])
def test_a_replay_on_a_gpu_draws_the_random_directions_of_its_iteration(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = precise(replace(TINY, method=named_method(method), device="cuda"))
    train(config, tmp_path / "unit")
    assert kinds(tmp_path / "unit", "engine")[0]["path"].endswith("captured in a CUDA graph")
    monkeypatch.setattr(update, "why_not_captured", lambda *of: "to compare with")
    train(config, tmp_path / "steps")
    steps, as_unit = (Run(tmp_path / name).load() for name in ("steps", "unit"))
    torch.testing.assert_close(as_unit["meta"], steps["meta"], rtol=0, atol=1e-7)
