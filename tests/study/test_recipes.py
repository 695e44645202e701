"""The command that compares recipes: what it trains, and that a run is what its row says."""

from dataclasses import asdict
from itertools import chain
from pathlib import Path

import pytest
import torch

from study.experiments import recipe_subjects, recipes
from study.experiments.recipes import Trial, chosen, groups, rate, run, sampled

SHORT = 0.15  # seconds of processor time, before a subject's share of it


def test_no_recipe_is_run_twice() -> None:
    """Groups may be asked for one after the other, and their rows stand in one file"""
    every = list(chain(*groups().values()))
    assert len(set(every)) == len(every)


def test_more_seeds_are_for_what_was_best_in_validation() -> None:
    name, tried = "sinusoid", groups()["sinusoid"]
    scores = {trial: 1.0 + i for i, trial in enumerate(tried)}
    rows = [asdict(t) | {"measure": "squared error", "failed": "", "validation": [{"score": scores[t]}]} for t in tried]
    rows[0]["failed"] = "the meta-gradient is not finite"
    found = chosen(name, rows)
    assert [trial.method for trial in found] == ["multistep4", "maml", "fomaml", "reptile"]
    assert all(trial.schedule == "linear" for trial in found)
    exact = [trial for trial in tried if (trial.method, trial.clip) == ("maml", 1.0)]
    assert min(exact, key=lambda trial: scores[trial]) in found
    assert tried[0] not in found
    assert chosen("clips", rows) == groups()["clips"]


def test_an_own_folder_is_read_as_pictures_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe_subjects, "OWN_CLASSES", 10)
    written = recipe_subjects.write_folder(tmp_path)
    assert len(list(written.glob("*/*.png"))) == 200
    read = recipe_subjects.of_each_split(f"folder:{written}", None, 28)
    assert sum(len(images) for images in read.values()) == 10
    assert read["train"].shape[1:] == (20, 3, 28, 28)


@pytest.mark.parametrize("method", ["multistep4", "reptile"])
def test_a_run_is_trained_for_its_time_and_validated_on_the_way(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "VALIDATED", 10)
    monkeypatch.setattr(recipes, "TESTED", 10)
    threads, trial = torch.get_num_threads(), Trial("sinusoid", method, 0.01, clip=1.0, schedule="cosine")
    row = run((trial, SHORT, None))
    torch.set_num_threads(threads)
    assert row["failed"] == ""
    assert row["iterations"] == row["validation"][-1]["iterations"] > 0
    assert row["validation"][-1]["seconds"] == row["seconds"]
    assert bool(row["growth"]) == (method != "reptile")
    assert row["score"] > 0
    assert Trial(**{name: row[name] for name in Trial.__dataclass_fields__}) == trial


def test_the_outer_rate_falls_with_the_time_that_is_used() -> None:
    assert [rate("cosine", done) for done in (0.0, 0.5, 1.0, 1.1)] == pytest.approx([1, 0.5, 0, 0])
    assert [rate("linear", done) for done in (0.0, 0.5, 1.1)] == [1, 0.5, 0]
    assert rate("constant", 0.7) == 1
    assert sampled([1.0] * 20 + [3.0] * 20)[:2] == [1.0, 1.0]
