"""docs/results.md is in step with results/claims; figures are drawn from what was measured."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from study import results
from study.claims import files, keeping, page
from study.claims.figures import draw_ablations, draw_costs, draw_gradient_differences
from study.claims.register import REGISTER
from study.claims.transfer_costs import time_by_steps
from study.tables import claim_tables
from study.tables.pages import filled
from tests.study.claims.helpers import transfer
from tests.study.claims.test_verdicts import MEMORY, TIMES, bench_file, bench_rows, transfer_row

CLAIMS = results.ROOT / "results" / "claims"


def test_the_page_is_in_step_with_the_files() -> None:
    text = (results.ROOT / "docs" / "results.md").read_text()
    assert filled(text) == text, "run python -m study tables"
    assert all(f"| {id} |" in text for id in REGISTER)


def test_every_file_is_of_a_claim_and_says_what_the_register_says() -> None:
    for path in CLAIMS.glob("*.json"):
        claim, content = REGISTER[path.stem], files.read(CLAIMS, path.stem)
        assert content is not None
        assert (content["id"], content["claim"], content["paper"]) == (claim.id, claim.claim, claim.paper)


def test_every_file_that_a_claim_rests_on_is_there() -> None:
    for id in REGISTER:
        content = files.read(CLAIMS, id) or {"data": None}
        for path in re.findall(r"results/[\w./-]+\.jsonl?", content["data"] or ""):
            assert (results.ROOT / path).is_file(), f"{id}: {path}"


def test_a_claim_without_a_file_is_open(tmp_path: Path) -> None:
    rows = list(page.rows("T4", tmp_path))
    assert len(rows) == 2 + 36
    assert "| T4.1 | MAML, as cited, omniglot-5w1s: accuracy, % | 98.7±0.4 |  | open |" in rows[2]
    assert list(page.summary(tmp_path))[2].endswith("| 2 |")


def test_accuracies_are_beside_the_papers(tmp_path: Path) -> None:
    for id in ("T4.1", "T4.17", "T4.26", "T5.17"):  # a number that is only quoted, and three that were run
        (tmp_path / f"{id}.json").write_text((CLAIMS / f"{id}.json").read_text())
    heading, _, *rows = page.few_shot_accuracies(tmp_path)
    assert heading == "| accuracy, % | omniglot-5w1s | omniglot-5w5s | miniimagenet-5w1s |"
    empty = [[not cell.strip() for cell in row.split("|")[2:-1]] for row in rows]
    assert empty == [[False, True, True], [True, False, True], [True, True, False]]
    assert [row.split(" | ")[0] for row in rows] == ["| MAML", "| Multi-step(2)", "| Multi-step(8)"]
    assert "(99.10)" in rows[0]


def test_costs_are_drawn_in_the_papers_form(tmp_path: Path) -> None:
    content = {"command": "c", "commit": "a", "device": "a card", "versions": {}, "rows": bench_rows(MEMORY, TIMES)}
    (tmp_path / "h200-bench.json").write_text(json.dumps(content))
    assert draw_costs(tmp_path / "h200-bench.json", tmp_path / "costs.svg") == ["omniglot-5w1s"]
    picture = (tmp_path / "costs.svg").read_text()
    assert "<svg" in picture
    (tmp_path / "cpu-bench.json").write_text(json.dumps(content | {"rows": []}))
    assert draw_costs(tmp_path / "cpu-bench.json", tmp_path / "none.svg") == []
    assert not (tmp_path / "none.svg").exists()


def test_how_gradients_change_is_drawn_where_a_run_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_tables, "CLAIMS", tmp_path)
    blind = transfer("stl10-sgd-baseline", 77.0)
    keeping.keep(tmp_path / keeping.FOLDER, blind.preset, blind)
    assert claim_tables.looked() is None
    looks = tuple((k / 2, 1 / k) for k in (1, 2, 3))
    run = replace(blind, seed=1, gradient_differences=looks)
    keeping.keep(tmp_path / keeping.FOLDER, run.preset, run)
    assert claim_tables.looked() == run
    draw_gradient_differences(run, tmp_path / "looks.svg")
    assert "<svg" in (tmp_path / "looks.svg").read_text()


def test_ablations_are_drawn_with_their_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_tables, "CLAIMS", tmp_path)
    assert claim_tables.ablated() is None
    for name, seed in (("t1", 0), ("baseline", 0), ("baseline", 1), ("multistep", 0), ("3step-estimate", 0)):
        run = transfer(f"stl10-adam-{name}", 77.0 + seed, seed)
        keeping.keep(tmp_path / keeping.FOLDER, run.preset, run)
    found = claim_tables.ablated()
    assert found is not None
    target, runs = found
    assert (target, {name: len(each) for name, each in runs.items()}) == (
        "stl10", {"t1": 1, "baseline": 2, "multistep": 1, "3step-estimate": 1},
    )  # fmt: skip
    draw_ablations(runs, None, tmp_path / "alone.svg")
    rows = [transfer_row("transfer-stl10-adam", name, 10.0) for name in ("t1", "baseline", "t3", "multi_step")]
    times = time_by_steps(bench_file(tmp_path, "gpu-transfer.json", rows))
    assert times is not None
    assert times.rows.keys() == {(1, 1), (2, 1), (3, 1), (2, 2)}
    draw_ablations(runs, times, tmp_path / "timed.svg")
    alone, timed = ((tmp_path / f"{name}.svg").read_text() for name in ("alone", "timed"))
    assert "not measured yet" in alone
    assert "transfer-stl10-adam on a card" in timed
