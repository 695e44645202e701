"""Nothing that a reader can see may change by accident: parameters, answers, arrays, verdicts, tables, what help loads.

The values in expected.json were measured at commit f8a7508. They stay as they are; `measured.py` follows the API.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.helpers import loaded_by_help
from tests.golden import measured

EXPECTED: dict[str, Any] = json.loads(Path(__file__).with_name("expected.json").read_text())
RUNS_ADDED = {"claims", "claims/summary", "claims/T2", "claims/T3", "claims/X"}  # tables with runs made since then
CLOSE = 1e-9  # relative to the norm of a tensor
LOADED_BY_HELP = {  # typer, and what its versions need
    "typer", "rich", "click", "shellingham", "typing_extensions", "annotated_doc", "pygments", "markdown_it", "mdurl",
    "pydantic", "pydantic_core", "annotated_types", "typing_inspection",
}  # fmt: skip


def assert_alike(found: measured.Sketch, expected: measured.Sketch) -> None:
    assert found.keys() == expected.keys()
    for name, (norm, *products) in expected.items():
        assert found[name] == pytest.approx([norm, *products], rel=0, abs=CLOSE * norm), name


@pytest.mark.parametrize("preset", measured.FEW_SHOT_PRESETS)
def test_theta_after_twenty_iterations(preset: str, tmp_path: Path) -> None:
    assert_alike(measured.few_shot_sketch(preset, tmp_path / "run"), EXPECTED["theta"][preset])


def test_phi_after_an_epoch_of_transfer(tmp_path: Path) -> None:
    assert_alike(measured.transfer_sketch(tmp_path / "run"), EXPECTED["phi"][measured.TRANSFER_PRESET])


@pytest.mark.parametrize("name", EXPECTED["learners"])
def test_shipped_learners(name: str) -> None:
    expected, found = EXPECTED["learners"][name], measured.learner_answers(name)
    assert measured.learner_digest(name) == expected["theta"]
    assert found["right"] == expected["right"]
    assert found["log_probability"] == pytest.approx(expected["log_probability"], rel=1e-4)


def test_embedded_data() -> None:
    found = measured.data_digests(None, embedded=True)
    assert found.items() <= EXPECTED["data"].items()
    assert len(found) == 11  # five splits of glyphs, and two data sets with three labelled parts


def test_data_sets_at_hand() -> None:
    root = os.environ.get("METASTEP_DATA")
    if not root:
        pytest.skip("METASTEP_DATA names no data directory")
    found = measured.data_digests(Path(root), embedded=False)
    assert found
    assert found.items() <= EXPECTED["data"].items()


def test_verdicts() -> None:
    assert len(EXPECTED["verdicts"]) == 113
    judged = {claim: verdict for claim, verdict in EXPECTED["verdicts"].items() if verdict != "not run"}
    found = measured.verdicts()
    assert found.keys() == EXPECTED["verdicts"].keys()
    assert {claim: found[claim] for claim in judged} == judged


def test_tables() -> None:
    names = EXPECTED["tables"].keys() - RUNS_ADDED
    assert measured.table_digests(names) == {name: EXPECTED["tables"][name] for name in names}


def test_packages_loaded_by_help() -> None:
    loaded = set().union(*loaded_by_help().values())
    assert {"metastep", "typer"} <= loaded
    others = {name for name in loaded - sys.stdlib_module_names if not name.startswith("_sysconfigdata")}
    assert others - {"metastep"} <= LOADED_BY_HELP
