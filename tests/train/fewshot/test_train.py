import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from metastep.core.methods import MultiStep
from metastep.core.optimizers import SGD, Adam, AdamW, RMSprop
from metastep.data.pictures import Pictures
from metastep.errors import MetastepError, NonFiniteError
from metastep.step import gradient
from metastep.step.compiled.engine import Compiled
from metastep.step.compiled.inductor import interpreted
from metastep.step.compiled.paying import Decision
from metastep.train import loop, remembered
from metastep.train.config import Data, FewShot, Net, Outer, Test, Validation
from metastep.train.evaluate import mean
from metastep.train.fewshot import job
from metastep.train.fewshot.evaluate import VALIDATION_SEED, Sampler, judge
from metastep.train.fewshot.job import build_optimizer, scheduler
from metastep.train.fewshot.learner import Learner
from metastep.train.loop import resume, train
from metastep.train.record import read_metrics
from metastep.train.run import Run
from tests.train.fewshot.helpers import METHODS, SIZE, TINY, loading, named_method, same_state, stripes, tiny


def stop_before(monkeypatch: pytest.MonkeyPatch, iteration: int, error: BaseException | None = None) -> None:
    """As if Ctrl-C were pressed, or something broke, while iteration `iteration` (from 0) draws its tasks"""
    draw = Sampler.__call__

    def call(self: Sampler, k: int, tasks: int, first: int = 0) -> Any:
        if k == iteration and tasks == TINY.tasks:
            monkeypatch.setattr(Sampler, "__call__", draw)
            if error:
                raise error
            os.kill(os.getpid(), signal.SIGINT)
        return draw(self, k, tasks, first)

    monkeypatch.setattr(Sampler, "__call__", call)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_resumes_bit_for_bit(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(tiny(iterations=3), method=named_method(method))
    config = replace(config, checkpoint_seconds=100)
    assert train(config, tmp_path / "whole").iterations == 3
    stop_before(monkeypatch, 0)
    assert train(config, tmp_path / "halves").iterations == 1
    assert resume(tmp_path / "halves").iterations == 3
    assert same_state(tmp_path / "whole", tmp_path / "halves")


@pytest.mark.parametrize(
    "changes",
    [
        {"inner": Adam(1e-2, (0.0, 0.999)), "steps": 3, "batch": 2, "data": replace(TINY.data, shots=2)},
        {"inner": AdamW(1e-2, weight_decay=0.1), "steps": 3},
        {"inner": RMSprop(1e-2, momentum=0.5), "steps": 3},
        {"inner": SGD(0.1, 0.9, nesterov=True), "steps": (2, 1), "method": MultiStep(window=1)},
        {"outer": Outer("sgd", 0.5, schedule="linear", clip_value=0.01)},
        {"outer": Outer("adamw", 1e-2, weight_decay=0.1, eps=1e-4, clip=0.5)},
        {"outer": Outer(warmup=2, ramp=3), "method": MultiStep(window=[1, 2, 1])},
        {"precision": "float64", "chunk_size": 3},
        {
            "data": replace(TINY.data, rotations="as_classes"),
            "test": Test(shots=2, steps=6, rotations="per_episode"),
        },
        {"net": Net("tests.train.fewshot.helpers:Flat", size=SIZE)},
    ],
)
def test_every_option_trains(changes: dict[str, Any], tmp_path: Path) -> None:
    assert train(replace(tiny(iterations=4), **changes), tmp_path / "run").best is not None


def test_a_run_compiles_where_that_pays_and_so_does_its_resumption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gradient, "Compiled", partial(Compiled, build=interpreted))  # what inductor adds takes a minute
    monkeypatch.setattr(job, "decided", lambda *of: Decision(True, "Compiling takes some 12 s."))
    config = replace(tiny(iterations=3), net=Net("tests.train.fewshot.helpers:Flat", size=SIZE), checkpoint_seconds=100)
    assert train(config, tmp_path / "whole").iterations == 3
    assert capsys.readouterr().err.count("Compiling takes some 12 s.") == 1
    stop_before(monkeypatch, 0)
    assert train(config, tmp_path / "halves").iterations == 1
    monkeypatch.delattr(job, "decided")  # a resumed run does not measure again
    assert resume(tmp_path / "halves", changes={"net.name": config.net.name}).iterations == 3
    assert same_state(tmp_path / "whole", tmp_path / "halves")
    engines = [row["path"] for row in read_metrics(Run(tmp_path / "halves").metrics_path) if row["kind"] == "engine"]
    assert len(engines) == 2
    assert all(path.startswith("compiled, 4 tasks at a time") for path in engines)


def test_a_run_compiles_if_it_is_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient, "Compiled", partial(Compiled, build=interpreted))
    monkeypatch.delattr(job, "decided")  # nothing is to be decided
    config = replace(tiny(iterations=1), net=Net("tests.train.fewshot.helpers:Flat", size=SIZE))
    for compile, engine in {True: "compiled", False: "autograd"}.items():
        train(replace(config, compile=compile), tmp_path / engine)
        (row,) = [row for row in read_metrics(Run(tmp_path / engine).metrics_path) if row["kind"] == "engine"]
        assert row["path"].startswith(engine)


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Without those about how this part of a run was computed"""
    return [row for row in read_metrics(Run(run).metrics_path) if row["kind"] not in ("engine", "environment")]


def test_a_run_that_explodes_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"PATIENCE": 3, "ROWS": 3, "STUCK": 0.0}.items():
        monkeypatch.setattr(loop, name, value)
    train(TINY, tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    assert "growth" in rows[0]
    (row,) = [row for row in rows if row["kind"] == "advice"]
    assert row["step"] == 3
    assert "outer.clip=0.5" in row["text"]
    assert capsys.readouterr().err.count(row["text"]) == 1


def test_training_learns_and_keeps_its_best(tmp_path: Path) -> None:
    trained = train(replace(tiny(iterations=60, lr=1e-2), validation=Validation(20, 40)), tmp_path / "run")
    rows = [row for row in read_metrics(Run(tmp_path / "run").metrics_path) if row["kind"] == "validation"]
    best = max(row["validation_accuracy"] for row in rows)
    assert trained.best == best > 0.5
    assert Run(tmp_path / "run").load("best")["trained"]["best"] == best

    learner = Learner.load(tmp_path / "run")
    in_sevens = replace(learner, config=replace(learner.config, chunk_size=7))
    sampler = Sampler.of(stripes(split="val"), TINY.test_episodes, VALIDATION_SEED, "cpu", torch.float32)
    assert mean(judge(in_sevens, sampler, 40).accuracy).mean == pytest.approx(best)


def test_the_interval_is_that_of_the_papers() -> None:
    assert mean(torch.tensor([0.0, 1.0, 1.0, 0.0])) == pytest.approx((0.5, 1.96 * 0.5 / 2))


def test_what_cannot_be_trained(tmp_path: Path) -> None:
    with pytest.raises(MetastepError, match="9-way episodes need 9 classes"):
        train(replace(TINY, data=Data("stripes", ways=9, queries=2)), tmp_path / "ways")


@pytest.mark.parametrize(("done", "expected"), [(0, 2.0 + 1.5 + 1.0 + 0.5), (2, 1.0 + 0.5)])
def test_the_linear_schedule_ends_at_zero(done: int, expected: float) -> None:
    config = tiny(optimizer="sgd", lr=2.0, schedule="linear", iterations=4)
    p = torch.zeros(1, requires_grad=True)
    optimizer = build_optimizer(config.outer, p)
    falling = scheduler(config, optimizer, done)
    assert falling is not None
    for _ in range(4 - done):
        p.grad = torch.ones(1)
        optimizer.step()
        falling.step()
    assert p.item() == -expected


def test_a_config_for_a_folder_takes_the_shape_of_its_pictures(tmp_path: Path) -> None:
    config = replace(tiny(iterations=1), net=replace(TINY.net, channels=3, size=84))
    train(config, tmp_path / "run")
    assert Run(tmp_path / "run").config(FewShot).net.size == SIZE


def test_a_checkpoint_is_never_made_of_what_is_not_finite(tmp_path: Path) -> None:
    config = replace(tiny(optimizer="sgd", lr=1e38, iterations=3), checkpoint_seconds=0)
    with pytest.raises(NonFiniteError, match="iteration 1: the outer optimizer left the finite numbers"):
        train(config, tmp_path / "run")
    assert not Run(tmp_path / "run").last.exists()


def test_too_few_classes_to_validate_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def few(split: str) -> Pictures:
        return stripes(split).only([0, 1]) if split == "val" else stripes()

    monkeypatch.setattr(remembered, "load", loading(few))
    with pytest.raises(MetastepError, match=r"validation, on 2 held-out classes.* need 3 .*validation.every=0"):
        train(TINY, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    train(replace(TINY, validation=Validation(every=0)), tmp_path / "run")
