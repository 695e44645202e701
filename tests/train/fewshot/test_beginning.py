"""Training that starts from a learner: its θ, its configuration, and no folder where they do not fit."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from typer.testing import CliRunner

import metastep as ms
from metastep.cli.train import DEFAULT, begun_from
from metastep.cli.use import open_learner
from metastep.core.problems import params_of
from metastep.errors import MetastepError
from metastep.step.update import EagerUpdate
from metastep.train import presets
from metastep.train.config import Data, FewShot, Net, Outer
from metastep.train.fewshot.job import ITERATIONS, require_fitting
from metastep.train.fewshot.learner import Learner
from metastep.train.loop import resume, train
from metastep.train.run import Run
from tests.train.fewshot.helpers import TINY, tiny
from tests.train.fewshot.test_commands import app
from tests.train.fewshot.use_helpers import write_run

PRESETS = presets.few_shot()

STILL = Outer("sgd", 1e-30)  # a step that changes no float


@pytest.fixture
def start(tmp_path: Path) -> Path:
    train(tiny(iterations=3), tmp_path / "start")
    return tmp_path / "start"


def begun(start: Path, **changes: object) -> FewShot:
    return replace(TINY, start=str(start), outer=STILL, tasks=2, iterations=1, seed=7, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", [ms.MAML(), ms.MetaSGD()], ids=["theta", "rates"])
def test_theta_is_that_of_the_learner(method: ms.methods.Method, start: Path, tmp_path: Path) -> None:
    train(begun(start, method=method), tmp_path / "run")
    ours, theirs = Learner.load(tmp_path / "run").meta, Learner.load(start).meta
    torch.testing.assert_close(params_of(ours), theirs, rtol=0, atol=0)


def test_for_other_ways_the_head_starts_from_zero(start: Path, tmp_path: Path) -> None:
    train(begun(start, data=Data("stripes", ways=2, shots=1, queries=2)), tmp_path / "run")
    ours, theirs = Learner.load(tmp_path / "run").meta, Learner.load(start).meta
    assert ours["head.weight"].shape[0] == 2
    assert ours["head.weight"].abs().max() < 1e-20  # one such step from 0
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if not name.startswith("head"))


def test_what_does_not_fit_leaves_no_folder(start: Path, tmp_path: Path) -> None:
    with pytest.raises(MetastepError, match=r"is a conv4 of 4 filters, and this run is to train a conv4 of 8 filters"):
        train(begun(start, net=TINY.net.changed(filters=8)), tmp_path / "run")
    with pytest.raises(
        MetastepError, match=r"start = it: takes pictures of 3×84×84, and those of 'glyphs' are 1×28×28"
    ):
        require_fitting("it", Net(channels=3, size=84), Net(), "glyphs")
    with pytest.raises(MetastepError, match="there is no such run or learner"):
        train(begun(tmp_path / "nowhere"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_checkpoint_yet_starts_from_it_again(start: Path, tmp_path: Path) -> None:
    config = begun(start)
    train(config, tmp_path / "whole")
    Run.create(tmp_path / "killed", config)
    resume(tmp_path / "killed")
    torch.testing.assert_close(Learner.load(tmp_path / "killed").meta, Learner.load(start).meta, rtol=0, atol=0)
    shutil.rmtree(start)  # from its first checkpoint on, a run needs it no more
    resume(tmp_path / "killed", changes={"iterations": "2"})


def test_from_the_first_moment_on_a_run_needs_its_start_no_more(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(EagerUpdate, "__call__", Mock(side_effect=MetastepError("stopped before the first iteration")))
        with pytest.raises(MetastepError, match="before the first"):
            train(begun(start), tmp_path / "run")
    before = Learner.load(start).meta
    shutil.rmtree(start)
    resume(tmp_path / "run")
    torch.testing.assert_close(Learner.load(tmp_path / "run").meta, before, rtol=0, atol=0)


def test_before_training_it_is_its_start(start: Path, tmp_path: Path) -> None:
    train(begun(start), tmp_path / "run")
    before = Learner.load(start).meta
    resume(start, changes={"iterations": "4"})  # it goes on by itself
    judged = open_learner(tmp_path / "run", "untrained", None, "cpu")
    torch.testing.assert_close(judged.meta, before, rtol=0, atol=0)
    assert judged.checkpoint == "untrained"


def test_another_folder_is_no_other_state_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("first"), replace(TINY, data=replace(TINY.data, fingerprint="of a folder")))
    usual = begun_from("first", [])[1]
    assert isinstance(usual, FewShot)
    assert (usual.data.fingerprint, usual.iterations, usual.start) == (None, ITERATIONS, "first")
    assert begun_from(DEFAULT, ["start=first"])[1] == PRESETS[DEFAULT], "a preset that is typed counts"


def test_a_run_of_ones_own_net_can_be_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    net = ["net=tests.train.fewshot.helpers:wide", "iterations=1", "tasks=2", "validation.every=0"]
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    for flags in (["tiny", "net.filters=6", "--out", "one"], ["one", "--out", "two"]):
        done = CliRunner().invoke(app, ["train", *flags, *net])
        assert done.exit_code == 0, done.output


def test_on_the_command_line_it_brings_its_configuration(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["train", "start", "--iterations", "2", "tasks=2", "--validation.every=0"]
    done = CliRunner().invoke(app, flags)
    assert done.exit_code == 0, done.output
    config = json.loads(Path("runs/from-start/config.json").read_text())["config"]
    assert config["start"] == str(start)
    assert (config["net"]["filters"], config["inner"]["lr"], config["iterations"]) == (4, 0.1, 2)
    assert Run(Path("runs/from-start")).config(FewShot).shared.start == "start"
