"""`python -m study claims` from beginning to end, on runs that take a second."""

import json
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner, Result

import metastep as ms
from metastep.train import presets
from metastep.train.config import Test
from metastep.train.evaluate import read_evaluations
from metastep.train.fewshot.evaluate import Sampler
from metastep.train.run import Run
from metastep.train.stop import stop_on_signals
from study import together
from study.budget import within
from study.claims import fewshot_runs, planning
from study.claims.evidence import Evidence
from study.claims.files import FIELDS
from study.claims.register import REGISTER
from study.commands import app
from tests.study.claims.helpers import tiny

MAML, ESTIMATE, SCRATCH = "omniglot-5w1s-maml", "omniglot-5w1s-multistep4", "stl10-sgd-scratch"


@pytest.fixture(autouse=True)
def _tiny_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cells of table 4 on glyphs, one of table 2 on digits"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("METASTEP_DATA", raising=False)
    monkeypatch.setattr(fewshot_runs, "EPISODES", 8)
    monkeypatch.setattr(together, "START", "fork")  # tiny presets go with it
    monkeypatch.setitem(presets.few_shot(), MAML, tiny(method=ms.MAML()))
    monkeypatch.setitem(presets.few_shot(), ESTIMATE, tiny())
    scratch = replace(presets.transfer()["digits-sgd-scratch"], epochs=1, device="cpu")
    monkeypatch.setitem(presets.transfer(), SCRATCH, scratch)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["claims", *arguments], env={"COLUMNS": "300"})


def claim(id: str, folder: str = "results/claims") -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(folder, f"{id}.json").read_text())
    return content


def row(id: str, *arguments: str) -> str:
    """Its lines in the list"""
    listed = call("--list", *arguments).output
    found = re.search(rf"^{re.escape(id)} .*\n(?: .*\n)*", listed, re.MULTILINE)
    assert found, listed
    return found[0]


def test_a_complete_pass() -> None:
    assert "open" in row("T4.17")
    done = call("--only", "T4.17,T4.29,X3", "--device", "cpu")
    assert done.exit_code == 0, done.output
    found = claim("T4.29")
    assert list(found) == list(FIELDS)
    assert (found["seeds"], found["iterations"], found["episodes"], found["paper"]) == ([0], 2, 8, "98.97±1.02")
    assert found["verdict"] == "short"
    assert found["data"] == "glyphs, training classes"
    assert found["note"] == "Trained in float32. The checkpoint is the last."
    (tested,) = read_evaluations(Path(f"runs/reproduce/{ESTIMATE}-seed0"))
    assert tested.checkpoint == "last"
    assert found["command"] == "python -m study claims --only T4.29 --seeds 1 --precision float32 --data DATA"
    assert "done" in row("T4.29")
    difference = claim("T4.17")["value"] - found["value"]
    assert claim("X3")["value"] == pytest.approx(difference, abs=0.02)
    assert len(claim("X3")["seconds"]) == 2  # both runs, which served their own cells too
    assert sorted(path.name for path in Path("runs/reproduce").iterdir()) == [f"{MAML}-seed0", f"{ESTIMATE}-seed0"]


def test_where_test_classes_are_turned_those_as_they_are_come_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(presets.few_shot(), ESTIMATE, tiny(test=Test(rotations="per_episode")))
    call("--only", "T4.29")
    kept = {each.rotations: each for each in read_evaluations(Path(f"runs/reproduce/{ESTIMATE}-seed0"))}
    assert set(kept) == {"per_episode", "none"}
    assert kept["per_episode"].accuracies != kept["none"].accuracies
    assert claim("T4.29")["value"] == round(kept["per_episode"].accuracy, 2)
    assert f"as they are: {kept['none'].accuracy:.2f}±{kept['none'].interval:.2f}." in claim("T4.29")["note"]


def test_presets_that_differ_only_in_their_test_share_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    one, five = "omniglot-5w1s-reptile", "omniglot-5w5s-reptile"
    assert fewshot_runs.trained_as(five) == fewshot_runs.trained_as(one) == one
    monkeypatch.setitem(presets.few_shot(), one, tiny(test=Test(shots=1, steps=3)))
    monkeypatch.setitem(presets.few_shot(), five, tiny(test=Test(shots=2, steps=4)))
    monkeypatch.setitem(presets.few_shot(), ESTIMATE, tiny(3))
    assert call("--only", "T4.10", "--seeds", "1").exit_code == 0
    assert [path.name for path in Path("runs/reproduce").iterdir()] == [f"{one}-seed0"]
    kept = {each.shots: each for each in read_evaluations(Path(f"runs/reproduce/{one}-seed0"))}
    assert {shots: sum(each.windows) for shots, each in kept.items()} == {1: 3, 2: 4}
    monkeypatch.setattr("study.claims.session.train", pytest.fail)
    assert call("--only", "T4.9", "--seeds", "1").exit_code == 0
    assert (claim("T4.9")["value"], claim("T4.10")["value"]) == tuple(round(kept[n].accuracy, 2) for n in (1, 2))


def test_where_validation_chooses_the_checkpoint_each_has_its_own_run() -> None:
    assert fewshot_runs.trained_as("miniimagenet-5w5s-reptile") == "miniimagenet-5w5s-reptile"


def test_all_that_a_run_was_made_by_is_named() -> None:
    call("--only", "T4.29", "--device", "cpu")
    here = claim("T4.29")
    metrics = Path(f"runs/reproduce/{ESTIMATE}-seed0/metrics.jsonl")
    began = {"step": 0, "kind": "environment", "device": "a GPU", "torch": "1", "python": "2", "commit": "the first"}
    metrics.write_text(json.dumps(began) + "\n" + metrics.read_text())
    Path("results/claims/T4.29.json").unlink()
    call("--only", "T4.29")
    again, versions = claim("T4.29"), here["versions"]
    assert again["device"] == f"a GPU, then {here['device']}"
    assert again["versions"] == {"python": f"2, then {versions['python']}", "torch": f"1, then {versions['torch']}"}
    assert again["commit"] == f"the first, then {here['commit']}"


def test_what_is_done_is_not_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    call("--only", "T4.29")
    before = claim("T4.29")
    monkeypatch.setattr("study.claims.session.train", pytest.fail)
    monkeypatch.setattr("study.claims.session.resume", pytest.fail)
    assert call("--only", "T4.29").exit_code == 0
    assert claim("T4.29") == before


def timer_fires_at(iteration: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, fired = Sampler.__call__, []

    def drawing(self: Sampler, k: int, tasks: int, first: int = 0) -> Any:
        if k >= iteration and not fired:
            fired.append(k)
            signal.raise_signal(signal.SIGALRM)
        return draw(self, k, tasks, first)

    monkeypatch.setattr(Sampler, "__call__", drawing)


def test_the_end_of_the_budget_keeps_the_run_and_the_next_call_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(presets.few_shot(), ESTIMATE, tiny(40))
    assert call("--only", "T4.29", "--out", "whole", "--runs", "whole-runs").exit_code == 0
    timer_fires_at(3, monkeypatch)
    stopped = call("--only", "T4.29", "--budget", "1000")
    assert stopped.exit_code == 130, stopped.output
    assert claim("T4.29")["note"] == "Its runs were not made yet."
    state = re.search(r"at iteration (\d+) of 40", row("T4.29"))
    assert state
    assert 3 < int(state[1]) < 40
    assert call("--only", "T4.29").exit_code == 0
    again, whole = claim("T4.29"), claim("T4.29", "whole")
    assert (again["value"], again["interval"]) == (whole["value"], whole["interval"])


def test_a_test_that_was_stopped_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = fewshot_runs.evaluating.evaluate

    def stopping(learner: Any, request: Any, data: Any, progress: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        progress(4, 8)
        pytest.fail("it went on")

    monkeypatch.setattr(fewshot_runs.evaluating, "evaluate", stopping)
    assert call("--only", "T4.29").exit_code == 130
    assert "trained and not tested" in row("T4.29")
    monkeypatch.setattr(fewshot_runs.evaluating, "evaluate", judge)
    assert call("--only", "T4.29").exit_code == 0


def test_the_timer_asks_again_until_somebody_listens() -> None:
    began = time.monotonic()
    with stop_on_signals() as outer, within(0.05):
        while not outer.requested and time.monotonic() < began + 5:
            time.sleep(0.005)
    assert outer.signal is signal.SIGTERM
    assert time.monotonic() < began + 5
    time.sleep(0.06)  # nothing fires afterwards


def test_fewer_iterations_have_their_own_runs_and_say_so() -> None:
    monkeypatched = presets.few_shot()
    assert monkeypatched[ESTIMATE].iterations == 2
    done = call("--only", "T4.29", "--iterations", "1")
    assert done.exit_code == 0
    assert "short (1 of 2 iterations)" in done.output
    assert Path(f"runs/reproduce/{ESTIMATE}-1it-seed0").is_dir()
    found = claim("T4.29")
    assert found["iterations"] == 1
    assert "1 of the paper's 2 iterations." in found["note"]
    assert "--iterations 1 " in found["command"]
    assert "1 iteration" in row("T4.29")  # not as many as are wanted
    assert call("--only", "T4.29").exit_code == 0
    assert claim("T4.29")["iterations"] == 2
    assert call("--only", "T4.29", "--iterations", "1").exit_code == 0
    assert claim("T4.29")["iterations"] == 2  # what rests on less leaves it alone


def test_an_evaluation_on_other_pictures_is_no_evidence() -> None:
    call("--only", "T4.29")
    (kept,) = Path(f"runs/reproduce/{ESTIMATE}-seed0/evaluations").iterdir()
    kept.write_text(kept.read_text().replace('"dataset": "glyphs"', '"dataset": "omniglot"'))
    assert "trained and not tested" in row("T4.29", "--out", "elsewhere")


def test_a_damaged_run_does_not_hold_up_the_others() -> None:
    Run.create(folder := Path("runs", "reproduce", f"{MAML}-seed0"), presets.few_shot()[MAML])
    (folder / "last.safetensors").write_bytes(b"half of a checkpoint")
    failed = call("--only", "T4.17,T4.29", "--together", "2")
    assert failed.exit_code == 2
    assert "1 of the runs could not continue." in failed.output
    assert claim("T4.29")["verdict"] == "short"


def test_transfer_takes_three_seeds_first_ones_first() -> None:
    done = call("--only", "T2.2", "--seeds", "1")
    assert done.exit_code == 0, done.output
    assert claim("T2.2")["interval"] is None
    assert "done with 1 of 3 seeds" in row("T2.2")
    assert call("--only", "T2.2").exit_code == 0
    found = claim("T2.2")
    assert (found["seeds"], found["episodes"], len(found["seconds"])) == ([0, 1, 2], None, 3)
    assert found["interval"] >= 0
    assert found["iterations"] > 0
    assert found["data"].startswith("digits at 16×16, none")


def test_a_run_that_is_there_is_taken_and_another_one_is_refused() -> None:
    folder = Path("runs/reproduce", f"{ESTIMATE}-seed0")
    call("--only", "T4.29")
    presets.few_shot()[ESTIMATE] = tiny(precision="float64")  # it is put back by the fixture
    assert call("--only", "T4.29").exit_code == 0
    Path("results/claims/T4.29.json").unlink()
    (folder / "made.json").unlink()
    presets.few_shot()[ESTIMATE] = replace(tiny(), inner=replace(tiny().inner, lr=0.3))
    refused = call("--only", "T4.29")
    assert refused.exit_code == 2
    assert "is a run of something else (inner.lr = 0.1, not 0.3). Choose another --runs" in refused.output


def test_a_run_that_diverges_or_is_taken_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    wild = tiny(method=ms.MAML())
    wild = replace(wild, inner=replace(wild.inner, lr=1e30), steps=8)
    monkeypatch.setitem(presets.few_shot(), MAML, wild)
    failed = call("--only", "T4.17,T4.29")
    assert failed.exit_code == 2
    assert "1 of the runs could not continue. omniglot-5w1s-maml, seed 0: update 1" in failed.output
    assert claim("T4.17")["verdict"] == "not run"
    assert "update 1" in claim("T4.17")["note"]
    assert claim("T4.29")["verdict"] == "short"
    with Run.open(Path("runs/reproduce", f"{MAML}-seed0")).lock():
        taken = call("--only", "T4.17")
    assert taken.exit_code == 2
    assert "is writing this run" in taken.output


def test_a_whole_pass_says_what_cannot_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "SEEDS", dict.fromkeys(planning.SEEDS, 1))
    done = call("--device", "cpu")
    assert done.exit_code == 0, done.output
    assert (claim("T4.1")["verdict"], claim("T4.1")["note"]) == ("not run", "literature number; own recipe not run")
    assert claim("T4.31")["note"] == "omniglot is not at hand."
    assert claim("X5")["note"] == "cub200 is not at hand."
    assert "Missing for " in done.output
    assert "omniglot, " in done.output
    assert claim("X2")["verdict"] == "not run"
    assert claim("X16")["verdict"] == "reproduced"
    assert ": b̃₄: -1.88" in done.output
    assert claim("T4.29")["verdict"] == "short"
    assert len(list(Path("results/claims").glob("*.json"))) == 113
    assert "not run because literature number" in row("T4.1")
    assert "needs data: omniglot" in row("T4.31")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "T9.1"), "--only T9.1: there is no such claim"),
        (("--table", "T9"), "--table T9: there is no such table"),
        (("--only", "X3", "--table", "X"), "Leave one out"),
        (("--only", "T4.31"), "T4.31 needs omniglot, which is missing. Name the folder that has it with --data"),
        (("--only", "X5"), "X5 needs cub200, or stl10 in its place, which is missing."),
        (("--only", "T2.9"), "T2.9 needs cub200"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], message: str) -> None:
    refused = call(*arguments)
    assert refused.exit_code == 2
    assert message in refused.output
    assert not Path("runs").exists()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "claims"
    folder.mkdir(parents=True)
    (folder / "X16.json").write_text("{}")
    refused = call("--only", "X16")
    assert refused.exit_code == 2
    assert "X16.json" in refused.output
    assert "is no file of a claim" in refused.output


def test_a_table_is_listed_alone() -> None:
    listed = call("--list", "--table", "T5").output
    assert "T5.18" in listed
    assert "T4.1 " not in listed


def test_the_list_is_complete_in_80_columns() -> None:
    listed = CliRunner().invoke(app, ["claims", "--list"], env={"COLUMNS": "80"}).output
    assert max(map(cell_len, listed.splitlines())) == 80
    assert "…" not in listed
    words = " ".join(listed.split())
    for claim in REGISTER.values():
        assert f"{claim.claim} paper {claim.paper} · " in words


def test_evidence_of_nothing(tmp_path: Path) -> None:
    assert Evidence(tmp_path / "none", tmp_path).folders(MAML) == {}
