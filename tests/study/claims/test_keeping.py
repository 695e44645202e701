"""What runs found is kept beside the claims, and is as good as the runs."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from metastep.errors import MetastepError
from metastep.train import presets
from metastep.train.config import Test
from study.claims import fewshot_runs, keeping
from study.claims.evidence import Evidence
from study.claims.outcomes import Outcome
from tests.study.claims.helpers import few_shot, tiny, transfer
from tests.study.claims.test_session import ESTIMATE, MAML, _tiny_presets, call, claim

_ = _tiny_presets  # of that module, used here too
HERE = Path("results/claims") / keeping.FOLDER


@pytest.mark.parametrize(
    "outcome", [few_shot(MAML, [40.0, 60.0]), transfer("stl10-sgd-scratch", 67.123456789, seed=2)], ids=["few", "many"]
)
def test_what_is_read_is_what_was_kept(tmp_path: Path, outcome: Outcome) -> None:
    keeping.keep(tmp_path, outcome.preset, outcome)
    assert keeping.kept(tmp_path, outcome.preset) == {outcome.seed: outcome}
    (file,) = tmp_path.iterdir()
    assert f"metastep train {outcome.preset} seed={outcome.seed} precision=tf32 --data DATA" in file.read_text()
    assert keeping.kept(tmp_path, outcome.preset.rpartition("-")[0]) == {}, "another preset begins with its name"


def test_claims_are_judged_without_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    call("--only", "T4.17,T4.29,X3")
    before = [claim(id) for id in ("T4.17", "T4.29", "X3")]
    shutil.rmtree("runs")
    for path in Path("results/claims").glob("*.json"):
        path.unlink()
    monkeypatch.setattr("study.claims.session.train", pytest.fail)
    assert call("--only", "X3,T4.17,T4.29").exit_code == 0
    assert [claim(id) for id in ("T4.17", "T4.29", "X3")] == before
    assert not Path("runs").exists()


def test_seeds_are_added_to_those_that_are_kept() -> None:
    call("--only", "T4.29")
    shutil.rmtree("runs")
    assert call("--only", "T4.29", "--seeds", "2").exit_code == 0
    assert claim("T4.29")["seeds"] == [0, 1]
    assert [path.name for path in Path("runs/reproduce").iterdir()] == [f"{ESTIMATE}-seed1"]


def test_what_another_recipe_found_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    call("--only", "T4.29")
    shutil.rmtree("runs")
    evidence = Evidence(Path("runs"), Path(), kept=HERE)
    assert evidence.finished(ESTIMATE, 0)
    before = presets.few_shot()[ESTIMATE]
    for changed in (replace(before, inner=replace(before.inner, lr=0.2)), replace(before, test=Test(steps=3))):
        monkeypatch.setitem(presets.few_shot(), ESTIMATE, changed)
        assert not evidence.finished(ESTIMATE, 0)
    assert call("--only", "T4.29").exit_code == 0
    assert Path(f"runs/reproduce/{ESTIMATE}-seed0").is_dir()


def test_more_seeds_need_the_data_again(monkeypatch: pytest.MonkeyPatch) -> None:
    call("--only", "T4.29")
    shutil.rmtree("runs")
    monkeypatch.setattr(fewshot_runs, "lacking", lambda config, data: "its pictures")
    refused = call("--only", "T4.29", "--seeds", "2")
    assert (refused.exit_code, "T4.29 needs its pictures" in refused.output) == (2, True)
    assert call("--only", "T4.29").exit_code == 0, "what is there is judged"
    assert call("--table", "T4", "--seeds", "2").exit_code == 0
    assert claim("T4.29")["seeds"] == [0]
    assert not Path("runs").exists()


def test_a_copy_does_not_count_twice() -> None:
    call("--only", "T4.29")
    shutil.copy(HERE / f"{ESTIMATE}-seed0.json", HERE / f"{ESTIMATE}-seed5.json")
    with pytest.raises(MetastepError, match=r"seed5\.json': is of seed 0, by what it says"):
        Evidence(Path(), Path(), kept=HERE).outcomes(ESTIMATE)


def test_fewer_iterations_are_kept_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(presets.few_shot(), ESTIMATE, tiny(4))
    call("--only", "T4.29", "--iterations", "2")
    assert [path.name for path in HERE.iterdir()] == [f"{ESTIMATE}-2it-seed0.json"]
    call("--only", "T4.29")
    assert claim("T4.29")["iterations"] == 4


def test_a_run_that_serves_two_presets_is_kept_when_both_are(monkeypatch: pytest.MonkeyPatch) -> None:
    one, five = "omniglot-5w1s-reptile", "omniglot-5w5s-reptile"
    monkeypatch.setitem(presets.few_shot(), one, tiny(test=Test(shots=1, steps=3)))
    monkeypatch.setitem(presets.few_shot(), five, tiny(test=Test(shots=2, steps=4)))
    monkeypatch.setitem(presets.few_shot(), ESTIMATE, tiny(3))
    assert fewshot_runs.trained_as(five) == one
    call("--only", "T4.9", "--seeds", "1")
    shutil.rmtree("runs")
    evidence = Evidence(Path("runs"), Path(), kept=HERE)
    assert not evidence.finished(one, 0)
    call("--only", "T4.10", "--seeds", "1")
    shutil.rmtree("runs")
    assert evidence.finished(one, 0)
    assert evidence.lacking(five) is None


def test_a_damaged_file_is_named() -> None:
    HERE.mkdir(parents=True)
    (HERE / f"{MAML}-seed0.json").write_text('{"preset": 3}')
    with pytest.raises(MetastepError, match=rf"{MAML}-seed0.json': is no outcome of a run"):
        Evidence(Path(), Path(), kept=HERE).outcomes(MAML)
