"""`python -m study run same_path` and `python -m study run starts`, small enough for a test; and their tables."""

import json
import math
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from metastep.errors import MetastepError
from metastep.nets.conv4 import HeadInit
from metastep.train.fewshot.evaluate import read_images
from study import results
from study.experiments import same_path, starts, trials
from study.experiments.first_look import first_look
from study.experiments.settings import Size, configured, data_set
from study.experiments.starts import Job, Study
from study.tables import curves, run_tables

TINY = Size(filters=4, tasks=2, queries=2, rate=0.1)
ABOUT = {"command": "c", "commit": "0123456789abcdef", "device": "d", "versions": {"torch": "2"}}


@pytest.fixture(autouse=True)
def _no_omniglot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METASTEP_DATA", raising=False)


def write(name: str, *rows: dict[str, Any]) -> None:
    results.file_of(name).write_text(json.dumps(ABOUT | {"rows": rows}))


# ---- the fastest path and the plain one


def test_the_fastest_path_is_the_plain_one_and_another_seed_is_not() -> None:
    config = configured("glyphs", "5w1s", "multistep4", TINY, iterations=3)
    fastest, plain, other = same_path.compared(config, "multistep4", episodes=4, data=None)
    assert fastest["note"].startswith("derivatives by hand")
    assert plain["note"].startswith("autograd")
    assert fastest["distance"] < 1e-3 < other["distance"]
    assert (fastest["together_for"], plain["distance"], other["together_for"]) == (3, 0, 0)
    assert (fastest["difference"], plain["difference"]) == (0, 0)
    assert fastest["curve"] != other["curve"]
    assert len(plain["curve"]) == 3


def test_curves_are_means_of_losses_in_turn() -> None:
    losses = torch.arange(85.0)  # two at a time, and the last one left out
    curve = same_path.smoothed(losses)
    assert (len(curve), curve[0], curve[-1]) == (42, [1.0, 0.5], [83.0, 82.5])
    assert same_path.distance(losses, losses + torch.arange(85) / 100) == pytest.approx(0.825)
    assert same_path.together_for(losses + 1, torch.where(losses > 30, 1.02, 1.0) * (losses + 1)) == 31


def test_the_table_of_paths(root: Path) -> None:
    row = {"method": "maml", "seconds": 12.3, "distance": 0.01234, "together_for": 70, "accuracy": 80.04}
    row |= {"interval": 1.26, "difference": -0.25, "difference_interval": 0.5}
    write("bench/cpu-same-path", row | {"run": "fastest"}, row | {"run": "plain", "distance": 0.0})
    assert list(run_tables.same_path("bench/cpu-same-path"))[-2:] == [
        "| maml | fastest | 12 | 0.012 | 70 | 80.0 | 1.3 | -0.2 | 0.5 |",
        "| maml | plain | 12 |  |  | 80.0 | 1.3 |  |  |",
    ]
    assert list(run_tables.same_path("bench/gpu-same-path")) == []


def test_pictures_are_drawn_from_files_alone(root: Path) -> None:
    write("bench/gpu-same-path", {"method": "maml", "run": "fastest", "curve": [[0.5, 1.6], [1.5, 1.2]]})
    write("bench/gpu-starts", {"setting": "s", "method": "maml", "head": "zero", "curve": []})  # nothing to draw yet
    curves.main()
    assert [path.name for path in (root / "docs" / "figures").iterdir()] == ["gpu-same-path.svg"]
    drawn = results.picture_of("gpu-same-path").read_bytes()
    curves.main()
    assert results.picture_of("gpu-same-path").read_bytes() == drawn


# ---- starts


def study_in(folder: Path, **changes: Any) -> Study:
    return replace(Study(folder, None, TINY, iterations=4, episodes=2, looks=2), **changes)


def look(head: HeadInit, steps: int) -> dict[str, float | None]:
    config = configured("glyphs", "5w1s", "multistep4", TINY, iterations=1)
    config = replace(config, net=config.net.changed(head_init=head), data=replace(config.data, split="train"))
    config = replace(config, steps=steps)
    return first_look(config, read_images(config, None)[0])


def test_a_zero_head_shields_the_features_from_the_first_gradient() -> None:
    """∂L/∂features = Wᵀ·∂L/∂logits is 0: only weight decay moves them"""
    zero, kaiming = look("zero", steps=1), look("kaiming", steps=1)
    assert zero["loss_before"] == pytest.approx(math.log(5))
    assert zero["features_moved"] < 1e-4 < kaiming["features_moved"]  # type: ignore[operator]
    assert kaiming["loss_before"] != pytest.approx(math.log(5))
    assert look("zero", steps=8)["features_moved"] > 1e-4  # type: ignore[operator]
    for seen in (zero, kaiming):
        assert 0 < seen["head_gradient_norm"] <= seen["gradient_norm"]  # type: ignore[operator]
        assert 0.2 <= seen["ways_predicted"] <= 1  # type: ignore[operator]


def test_training_classes_train_and_validation_classes_judge(tmp_path: Path) -> None:
    config = study_in(tmp_path).config(Job("20w1s", "maml", "xavier"))
    assert data_set(None) == "glyphs"
    assert (config.data.split, config.validation.every, config.net.options["head_init"]) == ("train", 2, "xavier")
    assert (config.data.ways, config.inner.lr, config.method_name) == (20, 0.1, "maml")
    assert replace(study_in(tmp_path), size=Size()).config(Job("5w1s", "maml", "zero")).inner.lr == 0.4


def test_a_study_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = trials.train

    def asked_to_stop(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return train(*arguments)

    jobs = [Job("5w1s", "multistep4", head) for head in ("zero", "kaiming")]
    whole, halved = study_in(tmp_path / "whole"), study_in(tmp_path / "halved")
    assert whole.complete(jobs, places=1, budget=None) == {job.name: "" for job in jobs}
    with monkeypatch.context() as patch:
        patch.setattr(trials, "train", asked_to_stop)
        assert halved.complete(jobs, places=1, budget=60) == {}
    assert [job.head for job in jobs if halved.has_begun(job.name)] == ["zero"]
    assert halved.row(jobs[0])["iterations"] == 1
    assert len(halved.complete(jobs, places=2, budget=None)) == 2
    varying = ("seconds", "beside")
    for job in jobs:
        expected, found = ({k: v for k, v in one.row(job).items() if k not in varying} for one in (whole, halved))
        assert found == expected
        assert [step for step, _ in found["curve"]] == [2, 4]
    with pytest.raises(
        MetastepError,
        match=r"is a run of something else \(.*iterations = 4, not 6.*Choose another --runs, or move it",
    ):
        study_in(tmp_path / "whole", iterations=6).complete(jobs, places=1, budget=None)


def test_a_run_that_cannot_go_on_says_why_and_the_next_one_begins(tmp_path: Path) -> None:
    jobs = [Job("5w1s", "multistep4", head) for head in ("kaiming", "zero")]
    study = study_in(tmp_path, size=TINY._replace(rate=1e10))
    failures = study.complete(jobs, places=1, budget=None)
    assert list(failures) == [job.name for job in jobs]
    for job, failure in zip(jobs, failures.values(), strict=True):
        assert failure.startswith("update 1: ")
        row = study.row(job, failure)
        assert (row["iterations"], row["curve"], row["loss_after"], row["note"]) == (0, [], None, failure)


def test_the_command_writes_rows_and_a_picture(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = (
        "--settings 5w1s --methods multistep4 --heads zero --iterations 2 --looks 1 --episodes 2 --filters 4 --tasks 1"
    )
    monkeypatch.setattr("sys.argv", ["starts", *flags.split(), "--runs", str(root / "runs")])
    starts.main()
    content = results.read("bench/cpu-starts")
    assert content["command"] == f"python -m study run starts {flags}"
    assert [(row["head"], row["setting"], row["rate"]) for row in content["rows"]] == [("zero", "glyphs-5w1s", 0.4)]
    assert "![validation accuracy" in list(run_tables.starts("bench/cpu-starts"))[-1]


def test_the_table_of_starts(root: Path) -> None:
    row = {
        "setting": "omniglot-5w1s",
        "ways": 5,
        "method": "maml",
        "iterations": 2000,
        "interval": 1.04,
        "gradient_norm": 1234.5,
    }
    row |= {"loss_before": 1.609, "loss_after": None, "ways_predicted": 0.6, "features_moved": 19.7}
    zero = row | {"head": "zero", "curve": [[1000, 75.0], [2000, 80.0]]}
    kaiming = row | {"head": "kaiming", "curve": [[1000, 20.0], [2000, 21.0]]}
    assert run_tables.near(kaiming, [kaiming]) == ""  # the best, but no better than chance
    write("bench/gpu-starts", zero, kaiming)
    assert list(run_tables.starts("bench/gpu-starts"))[-2:] == [
        "| omniglot-5w1s | maml | zero | 2,000 | 80.0 | 1.0 | 1,000 | 1.23e+03 | 1.61, not finite | 60% | 20 |",
        "| omniglot-5w1s | maml | kaiming | 2,000 | 21.0 | 1.0 |  | 1.23e+03 | 1.61, not finite | 60% | 20 |",
    ]
