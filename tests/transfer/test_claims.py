"""Claim files from runs: which preset a run is of, what is judged, what is refused."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import transfer_claims as claiming
from benchmarks.transfer_claims import claim_files, claims, finished
from metastep.errors import MetastepError
from metastep.transfer import train as training
from metastep.transfer.config import MethodConfig
from metastep.transfer.presets import PRESETS
from metastep.transfer.train import train
from tests.transfer.train_helpers import stripes, tiny

FIELDS = (
    "id claim paper value interval verdict seeds iterations episodes seconds device versions data command commit note"
)


def test_every_cell_of_the_tables_has_its_preset_and_number() -> None:
    found = {claim.id: claim for claim in claims()}
    assert len(found) == 2 * 18 + 2
    assert {claim.preset for claim in found.values()} <= PRESETS.keys()
    cells = {"T2.2": ("stl10-sgd-scratch", 65.18), "T2.8": ("stl10-sgd-baseline", 78.31),
             "T2.14": ("stl10-sgd-multistep", 77.83), "T3.9": ("bird-adam-baseline", 66.26),
             "T3.18": ("dog-adam-multistep", 77.65)}  # fmt: skip
    assert {key: (found[key].preset, found[key].accuracy) for key in cells} == cells


def test_from_runs_to_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "load_labelled", stripes)
    config = tiny(MethodConfig("scratch"), epochs=1)
    monkeypatch.setitem(PRESETS, "stl10-sgd-scratch", config)
    monkeypatch.setitem(PRESETS, "stl10-adam-scratch", replace(config, epochs=2))
    for seed in (0, 3):
        train(replace(config, seed=seed, checkpoint_every=7), tmp_path / str(seed))
    runs = [finished(tmp_path / name) for name in ("0", "3")]
    (made,) = claim_files(runs)
    assert list(made) == FIELDS.split()
    assert (made["id"], made["seeds"], made["iterations"], made["verdict"]) == ("T2.2", [0, 3], 3, "short")
    assert made["value"] == pytest.approx(sum(run.test for run in runs) / 2, abs=0.01)
    (one,) = claim_files(runs[:1])
    assert one["interval"] is None
    with pytest.raises(MetastepError, match="two runs have seed 0"):
        list(claim_files([runs[0], runs[0]]))

    monkeypatch.setattr(sys, "argv", ["claims", str(tmp_path / "0"), "--out", str(tmp_path / "claims")])
    claiming.main()
    assert json.loads((tmp_path / "claims" / "T2.2.json").read_text()) == one


def test_the_verdict_allows_the_papers_own_deviation() -> None:
    claim = next(claim for claim in claims() if claim.id == "T2.17")  # 61.93 ± 3.32
    assert [claiming.verdict(value, claim) for value in (58.5, 58.7, 65.2, 65.3)] == [
        "short", "reproduced", "reproduced", "better",
    ]  # fmt: skip


def test_a_run_that_is_of_no_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "load_labelled", stripes)
    train(tiny(MethodConfig("scratch"), epochs=1), tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.transfer_claims", str(tmp_path / "run")], capture_output=True, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 1
    assert "none of these runs" in done.stderr
