"""Curves that are kept of few-shot runs: means over parts, of every row exactly one."""

import json
import sys
from pathlib import Path

import pytest

from study.experiments import training
from study.experiments.training import POINTS, draw, settings, thinned
from study.tables import transfer_tables


@pytest.mark.parametrize("number", [1, POINTS, POINTS + 1, 10 * POINTS + 7])
def test_thinned_rows_are_means_that_miss_nothing(number: int) -> None:
    rows = [{"step": 10 * (i + 1), "accuracy": i / number, "loss": float(i)} for i in range(number)]
    points = list(thinned(rows))
    assert len(points) <= POINTS
    assert points[-1][0] == 10 * number
    lengths = [(step - before) // 10 for before, (step, *_) in zip([0, *(p[0] for p in points)], points, strict=False)]
    assert sum(lengths) == number
    total = sum(length * loss for length, (_, _, loss) in zip(lengths, points, strict=True))
    assert total == pytest.approx(number * (number - 1) / 2, rel=1e-4, abs=1e-3)


def test_they_are_found_in_the_order_of_the_presets_and_drawn(tmp_path: Path) -> None:
    names = "omniglot-20w1s-maml", "omniglot-5w1s-fomaml", "omniglot-5w1s-maml", "miniimagenet-5w1s-maml"
    for name in names:
        (tmp_path / f"{name}-seed0.json").write_text(json.dumps({"curve": [[10, 50.0, 1.0], [20, 90.0, 0.5]]}))
    found = settings(tmp_path)
    assert {data: [(setting, list(of)) for setting, of in panels.items()] for data, panels in found.items()} == {
        "omniglot": [("omniglot-5w1s", ["maml", "fomaml"]), ("omniglot-20w1s", ["maml"])],
        "miniimagenet": [("miniimagenet-5w1s", ["maml"])],
    }
    draw(found["omniglot"], tmp_path / "curves.svg")
    assert "omniglot-20w1s" in (tmp_path / "curves.svg").read_text()


def test_of_transfer_all_that_was_measured_is_kept_to_five_digits(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = root / "stl10-sgd-scratch-seed1"
    folder.mkdir()
    rows = [{"step": 9, "kind": "train"}, {"step": 9, "kind": "validation", "test_accuracy": 0.7, "loss": 1.25}]
    long = [row | ({"loss": 1.2500001} if "loss" in row else {}) for row in rows]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in long))
    monkeypatch.setattr(training, "FOLDER", root / "results" / "runs")
    training.FOLDER.mkdir()
    monkeypatch.setattr(sys, "argv", ["training", str(folder)])
    training.main()
    assert transfer_tables.kept("stl10-sgd-scratch", 1) == rows
    assert transfer_tables.last_test("stl10-sgd-scratch", 1) == 0.7
