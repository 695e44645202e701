"""Tables from files of `metastep bench`; where there is no file, there is no table."""

import json
from pathlib import Path

import pytest

from benchmarks import bench_tables, results
from benchmarks.tables import filled
from metastep.bench.cases import Grid
from metastep.bench.floor import H200, floor
from metastep.bench.measure import Cost
from metastep.bench.plan import planned
from metastep.bench.results import row_of

NAME = "bench/h200-bench"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results, "ROOT", tmp_path)
    (tmp_path / "results" / "bench").mkdir(parents=True)
    return tmp_path


def write_rows(grid: Grid, implementations: list[str], name: str = NAME) -> None:
    """Every row takes 10 ms for each of its steps, and its implementation's place more"""
    cases = planned(grid, implementations)
    rows = [row_of(c, Cost(10 * c.steps + implementations.index(c.implementation), 2, c.tasks, 0)) for c in cases]
    about = {
        "command": "metastep bench",
        "commit": "0123456789abcdef",
        "device": "NVIDIA H200",
        "versions": {"torch": "2"},
    }
    failed = row_of(cases[0], None, "out of memory")
    results.file_of(name).write_text(json.dumps(about | {"rows": [*rows, failed | {"tasks": 1_000}]}))


def test_no_file_no_table(root: Path) -> None:
    page = f"before <!-- table: {NAME} -->old<!-- end --> after"
    assert filled(page) == f"before <!-- table: {NAME} -->\n<!-- end --> after"


def test_a_full_run_has_every_table(root: Path) -> None:
    grid = Grid(("omniglot-5w1s", "omniglot-20w5s"), ("maml", "multi_step4"), (4, 8, 64), precision="tf32")
    write_rows(grid, ["metastep", "hand-loop"])
    text = "\n".join(bench_tables.bench(NAME))
    assert "| omniglot-5w1s, 32 | maml, 8 | hand-loop | 81.0 | 1.0 | 32 |" in text
    least = max(floor("omniglot-20w5s", "maml", 8, 1, 16).milliseconds(H200))
    assert f"| omniglot-20w5s | maml | 80.0 | {least:.2f} | {least / 80:.0%} |" in text
    assert "| 64 | 640.0 (32) | 640.0 (32) |" in text  # with the inner steps
    assert "| omniglot-20w5s, 16 tasks | 80.0 (16) | 80.0 (16) |" in text
    assert "1,000" not in text
    assert "maml, 64 | hand-loop" not in text


def test_growth_with_tasks_and_parameters(root: Path) -> None:
    name = "bench/h200-growth"
    write_rows(Grid(("omniglot-5w1s", "omniglot-5w1s-32f"), ("maml",), (8,), tasks=(1, 32)), ["metastep"], name)
    lines = list(bench_tables.growth(name))
    assert [line for line in lines if line.startswith(("| 113,221", "| 28,"))] == [
        "| 113,221 | 1 | 80.0 (1) |",
        "| 113,221 | 32 | 80.0 (32) |",
        "| 28,965 | 1 | 80.0 (1) |",
        "| 28,965 | 32 | 80.0 (32) |",
    ]
