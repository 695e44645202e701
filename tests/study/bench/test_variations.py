"""Presets with one entry changed: which are made, and that they are trained, resumed and told; and what trained
learners are asked."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from metastep import Learner
from metastep.errors import MetastepError
from metastep.train import presets
from metastep.train.evaluate import digest
from metastep.train.loop import train
from metastep.train.validated import to_plain
from study import results
from study.claims import keeping
from study.experiments import compare_learners, heads, learner, variations
from study.experiments.variations import preset_of
from study.tables import run_tables
from tests.study.claims.helpers import few_shot

PRESETS = presets.transfer()

PRESET = "glyphs-5w1s-fomaml"


@pytest.mark.parametrize(
    ("change", "expected"),
    [("inner.lr=0.5", 0.5), ("net.head_init=kaiming", "kaiming"), ("seed=3", 3), ("chunk_size=null", None)],
)
def test_one_entry_is_changed_and_nothing_else(change: str, expected: object) -> None:
    before, after = preset_of(PRESET), variations.varied(preset_of(PRESET), change)
    *sections, field = change.partition("=")[0].split(".")
    part, as_before = (to_plain(config)[sections[0]] if sections else to_plain(config) for config in (after, before))
    assert part[field] == expected
    back = as_before[field]
    assert variations.varied(after, f"{change.partition('=')[0]}={back}") == before


@pytest.mark.parametrize("change", ["inner.rate=1", "iner.lr=1", "lr=1"])
def test_what_is_no_entry_is_refused(change: str) -> None:
    with pytest.raises(MetastepError, match=r"is no option|no such field"):
        variations.varied(preset_of(PRESET), change)


def test_a_value_that_the_preset_has_is_not_trained_twice() -> None:
    rate = preset_of(PRESET).inner.lr
    vary = [f"inner.lr={rate},0.3", "seed=0,1", "seed=2+inner.lr=0.3,0.4"]
    asked = [one.change for one in variations.variations([PRESET], vary)]
    assert asked == ["as it is", "inner.lr=0.3", "seed=1", "seed=2+inner.lr=0.3", "seed=2+inner.lr=0.4"]
    both = variations.varied(preset_of(PRESET), asked[-1])
    assert (both.seed, both.inner.lr) == (2, 0.4)


def test_every_variation_of_a_smaller_run_is_as_small() -> None:
    base = "net.filters=16+tasks=2"
    asked = list(variations.variations([PRESET], ["tasks=2,3"], base))
    assert [one.change for one in asked] == ["as it is", "tasks=3"], "2 is the base's"
    assert [(one.config.net.options["filters"], one.config.tasks) for one in asked] == [(16, 2), (16, 3)]
    names = {one.name for one in [*asked, *variations.variations([PRESET], ["tasks=3"])]}
    assert len(names) == 4, "each in a folder of its own"


def test_transfer_presets_are_told_by_their_test(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch = "digits-sgd-scratch"
    monkeypatch.setitem(PRESETS, scratch, replace(PRESETS[scratch], epochs=3))
    asked = ["transfer-choices", "--presets", scratch, "--vary", "epochs=1,2"]
    monkeypatch.setattr(sys, "argv", ["variations", *asked, "--runs", str(root / "runs")])
    variations.main()
    path = Path(capsys.readouterr().out.splitlines()[-1])
    rows = json.loads(path.read_text())["rows"]
    assert [(row["change"], row["epochs"], len(row["curve"])) for row in rows] == [
        ("as it is", 3, 3),
        ("epochs=1", 1, 1),
        ("epochs=2", 2, 2),
    ]
    assert all(row["curve"][row["best_epoch"] - 1][1] == max(a for _, a in row["curve"]) for row in rows)
    assert sum("| digits | sgd-scratch |" in line for line in run_tables.transfer_choices(f"bench/{path.stem}")) == 3


def test_a_study_trains_tells_and_does_nothing_that_is_done(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["first-order", "--presets", PRESET, "--vary", "seed=1", "--iterations", "2", "--looks", "1"]
    monkeypatch.setattr(sys, "argv", ["variations", *asked, "--episodes", "2", "--runs", str(root / "runs")])
    variations.main()
    path = Path(capsys.readouterr().out.splitlines()[-1])
    rows = json.loads(path.read_text())["rows"]
    assert [(row["change"], row["iterations"], len(row["curve"])) for row in rows] == [
        ("as it is", 2, 1),
        ("seed=1", 2, 1),
    ]
    assert sum("| glyphs-5w1s | fomaml |" in line for line in run_tables.variations(f"bench/{path.stem}")) == 2
    seen = {file: file.stat().st_mtime_ns for file in (root / "runs").rglob("last.safetensors")}
    variations.main()
    assert {file: file.stat().st_mtime_ns for file in seen} == seen


def test_rows_apart_and_a_learner_without_its_head(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert heads.apart(torch.tensor([[3.0, 0.0], [0.0, 0.0], [0.0, 0.0]])).tolist() == pytest.approx([2.0, 1.0, 1.0])
    folder = root / f"{PRESET}-seed0"
    train(variations.varied(preset_of(PRESET), "iterations=2"), folder)
    trained = Learner.load(folder)
    assert heads.from_zero(trained).meta["head.weight"].abs().max() == 0 < trained.meta["head.weight"].abs().max()
    monkeypatch.setattr(sys, "argv", ["heads", str(folder), "--episodes", "3"])
    heads.main()
    capsys.readouterr()
    (row,) = results.read("bench/cpu-heads")["rows"]
    assert (row["method"], row["setting"], row["episodes"]) == ("fomaml", "glyphs-5w1s", 3)
    assert row["gain"] == pytest.approx(row["from_zero"] - row["accuracy"], abs=1e-4)
    assert list(run_tables.heads("bench/cpu-heads"))[-1].startswith("| glyphs-5w1s | fomaml |")


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("omniglot-20w1s-maml", [(None, None, "none"), (None, 5, None), (5, None, None), (10, None, None)]),
        ("miniimagenet-5w5s-maml", [(None, 1, None), (10, None, None), (20, None, None)]),
    ],
)
def test_a_learner_is_asked_what_it_was_not_trained_for(preset: str, expected: list[tuple[Any, ...]]) -> None:
    asked = [(one.ways, one.shots, one.rotations) for one in learner.otherwise(presets.few_shot()[preset])]
    assert asked == expected
    assert [one.one_by_one for one in learner.otherwise(presets.few_shot()[preset], one_by_one=True)].count(True) == 1
    fewer = learner.otherwise(presets.few_shot()[preset], most_ways=5)
    assert [(one.ways, one.shots, one.rotations) for one in fewer] == [one for one in expected if (one[0] or 5) <= 5]


def test_a_learner_is_told_as_its_run_was_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(learner, "CLAIMS", tmp_path)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["learner", "omniglot-5w1s", "--kept"])
    outcome = few_shot("omniglot-5w1s-maml", [90.0, 100.0])
    keeping.keep(tmp_path / keeping.FOLDER, "another", outcome)
    with pytest.raises(SystemExit, match="no run with these weights"):
        learner.main()
    assert outcome.evaluation is not None
    evaluation = replace(outcome.evaluation, weights=digest(Learner.load("omniglot-5w1s").meta))
    keeping.keep(tmp_path / keeping.FOLDER, "its", replace(outcome, evaluation=evaluation))
    learner.main()
    content = json.loads(Path(capsys.readouterr().out.strip()).read_text())
    assert (content["device"], content["evaluation"]["shots"], content["otherwise"]) == ("a device", 1, [])
    assert "accuracies" not in content["evaluation"]


def test_methods_are_compared_at_a_trained_learner(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = root / f"{PRESET}-seed0"
    train(variations.varied(preset_of(PRESET, "net.filters=4+inner.lr=1e-4"), "iterations=1"), folder)
    monkeypatch.setattr(sys, "argv", ["compare_learners", str(folder), "--tasks", "2"])
    compare_learners.main()
    capsys.readouterr()
    found = {row["method"]: row["cosine"] for row in results.read("bench/cpu-compare-learners")["rows"]}
    assert found.keys() == compare_learners.METHODS.keys()
    of_the_rate = [cosine for method, cosine in found.items() if not method.startswith("iMAML")]
    assert min(of_the_rate) > 0.9999, "at so small a rate all of them are first order"
    assert list(run_tables.compared_learners("bench/cpu-compare-learners"))[-1].startswith(
        f"| {PRESET} | 0.0001 | 1.000 |"
    )
