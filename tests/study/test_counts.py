"""No meta-step may do more work than it did: results/counts.json has what it did when somebody last looked."""

import io
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from study import counts
from study.commands import app
from study.counts import ADVICE, FILE, OF_TORCH, WINDOWS, changes, kept, row_of, version, walk
from study.problems import PROBLEMS, by_hand, by_metastep, work_of
from tests.core.helpers import relative_error

CASES = list(product(PROBLEMS, WINDOWS))


def content(*rows: Any, **walked: int) -> dict[str, Any]:
    return {"torch": version(), "walk": walked, "rows": list(rows)}


def kept_row(problem: str, method: str) -> Any:
    return next(row for row in kept()["rows"] if (row["problem"], row["method"]) == (problem, method))


@pytest.mark.parametrize(("problem", "method"), CASES)
def test_a_meta_step_does_no_more_than_it_did(problem: str, method: str) -> None:
    found = row_of(problem, method)
    worse = changes(kept(), content(found))
    assert not worse, f"{'; '.join(worse)}. {ADVICE}"
    if kept()["torch"] == version():  # the loop by hand is the measure, which nobody changes by accident
        loop = [f"loop_{name}" for name in OF_TORCH]
        assert [found[name] for name in loop] == [kept_row(problem, method)[name] for name in loop], ADVICE


def test_control_changes_file_no_more_than_it_did() -> None:
    worse = changes(kept(), content(**walk()))
    assert not worse, f"{'; '.join(worse)}. {ADVICE}"


def test_every_case_is_kept_by_the_pinned_version_of_torch() -> None:
    """Under another version operations and bytes cannot be compared: here they always are"""
    assert [(row["problem"], row["method"]) for row in kept()["rows"]] == CASES
    pinned = re.search(r"^torch==(\S+)", (FILE.parent.parent / "constraints.txt").read_text(), re.M)
    assert pinned
    assert kept()["torch"] == pinned[1]


@pytest.mark.parametrize(("problem", "method"), CASES)
def test_both_ways_make_the_same_meta_gradient(problem: str, method: str) -> None:
    work, window = work_of(problem, torch.float64), WINDOWS[method]
    (loss, gradient), (expected_loss, expected) = (way(work, window)() for way in (by_metastep, by_hand))
    assert float(loss) == pytest.approx(float(expected_loss), rel=1e-12)
    assert relative_error(gradient, expected) < 1e-12
    assert any(leaf.abs().max() > 1e-6 for leaf in expected.values())


def test_the_number_of_threads_does_not_matter() -> None:
    before, found = torch.get_num_threads(), []
    step = by_metastep(work_of("Conv4")._replace(steps=2), 1)
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(counts.counted(step))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]


@pytest.mark.parametrize("name", counts.COSTS)
def test_one_more_is_worse_and_one_less_is_better(name: str) -> None:
    row = kept_row("Conv4", "maml")
    more, less = (content(row | {name: row[name] + change}) for change in (1, -1))
    assert changes(kept(), content(row)) == changes(kept(), content(row), better=True) == []
    assert changes(kept(), more) == [f"{name} of Conv4, maml: {row[name]:,} -> {row[name] + 1:,}"]
    assert changes(kept(), less, better=True) == [f"{name} of Conv4, maml: {row[name]:,} -> {row[name] - 1:,}"]
    assert changes(kept(), less) == changes(kept(), more, better=True) == []


def test_under_another_torch_only_what_does_not_depend_on_it_is_compared() -> None:
    row = kept_row("Conv4", "maml")
    other = content({name: value + 1 if isinstance(value, int) else value for name, value in row.items()})
    assert [change.split()[0] for change in changes(kept(), other)] == list(counts.COSTS)
    assert [change.split()[0] for change in changes(kept(), other | {"torch": "0"})] == ["gradients", "products"]


def test_more_work_is_seen() -> None:
    """The counts count: a second product, a longer loop, a larger net"""
    work = work_of("MLP, SGD")
    once, longer = (counts.counted(by_metastep(work._replace(steps=n), 1)) for n in (4, 5))
    assert longer["gradients"] == once["gradients"] + 1 == 6
    assert longer["products"] == once["products"] + 1 == 5
    assert longer["operations"] > once["operations"]
    assert longer["bytes"] > once["bytes"]


def test_bytes_are_those_of_live_tensors() -> None:
    def step() -> Any:
        x = torch.ones(100)  # 400 bytes
        y = x + 1
        del x
        return y + 1, {}

    assert counts.counted(step) == {"operations": 3, "gradients": 0, "products": 0, "bytes": 800}


def test_the_walk_is_of_named_functions_of_the_package() -> None:
    from metastep.core.trees import add
    from metastep.errors import how_many

    def across() -> None:
        how_many(1, "task")
        how_many(2, "task")
        add({"a": 1.0}, {"a": 2.0})
        how_many(3, "task")

    assert walk(across) == {"files": 2, "changes": 3}


def test_the_table_names_every_problem_and_method_on_a_narrow_terminal() -> None:
    shown = io.StringIO()
    Console(width=80, file=shown).print(counts.table(kept()))
    assert "…" not in shown.getvalue()
    assert all(name in shown.getvalue() for name in (*PROBLEMS, *WINDOWS))


def test_the_command_keeps_what_it_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "counts.json"
    monkeypatch.setattr(counts, "FILE", path)
    monkeypatch.setattr(counts, "PROBLEMS", {"MLP, SGD": PROBLEMS["MLP, SGD"]})
    assert "Kept in" in CliRunner().invoke(app, ["counts", "--write"]).output
    first = path.read_text()
    path.write_text(first.replace('"products": 8', '"products": 7').replace('"gradients": 3', '"gradients": 4'))
    said = CliRunner().invoke(app, ["counts"]).output
    assert "worse: products of MLP, SGD, maml: 7 -> 8" in said
    assert "better: gradients of MLP, SGD, multi_step4: 4 -> 3" in said
    assert ADVICE in said
    assert path.read_text() != first
    assert ADVICE not in CliRunner().invoke(app, ["counts", "--write"]).output
    assert path.read_text() == first
