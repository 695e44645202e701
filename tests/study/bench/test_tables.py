"""Tables from files of `python -m study bench`; where there is no file, there is no table."""

import json
from pathlib import Path

import pytest

from study import results
from study.bench.cases import Case, Grid
from study.bench.floor import H200, floor, floor_parts
from study.bench.measure import Cost
from study.bench.plan import planned
from study.bench.results import about_case, row_of
from study.tables import bench_tables, goals, study_tables
from study.tables.pages import TABLES, filled

NAME = "bench/h200-bench"


def write_rows(grid: Grid, implementations: list[str], name: str = NAME) -> None:
    """Every row takes 10 ms for each of its steps, and its implementation's place more"""
    cases = planned(grid, implementations)
    rows = [row_of(c, Cost(10 * c.steps + implementations.index(c.implementation), 2, c.tasks, 0)) for c in cases]
    about = {
        "command": "python -m study bench",
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
    assert "| omniglot-5w1s, 32 | maml, 8 | hand-loop | 81.00 | 1.00 | 32 |" in text
    least = max(floor("omniglot-20w5s", "maml", 8, 1, 16).milliseconds(H200))
    assert f"| omniglot-20w5s | maml | 80.00 | {least:.2f} | {least / 80:.0%} |" in text
    assert "| 64 | 640 (32) | 640 (32) |" in text  # with the inner steps
    assert "| omniglot-20w5s, 16 tasks | 80.00 (16) | 80.00 (16) |" in text
    assert "1,000" not in text
    assert "maml, 64 | hand-loop" not in text


def test_mini_imagenet_stands_beside_a_floor_of_its_own(root: Path) -> None:
    name, settings = "bench/h200-mini", ("miniimagenet-5w1s", "miniimagenet-5w5s")
    write_rows(Grid(settings, ("maml", "first_order"), (8,), precision="tf32"), ["metastep", "torch.func"], name)
    text = "\n".join(TABLES[name](name))
    assert "| miniimagenet-5w1s, 4 | maml, 8 | torch.func | 81.00 | 1.00 | 4 |" in text
    least = max(floor("miniimagenet-5w5s", "first_order", 8, 1, 4).milliseconds(H200))
    assert f"| miniimagenet-5w5s | first_order | 80.00 | {least:.2f} | {least / 80:.0%} |" in text
    assert "| miniimagenet-5w5s, 4 tasks | 80.00 (4) | 80.00 (4) |" in text


def test_memory_of_exact_maml_and_meta_transfer(root: Path) -> None:
    grid = Grid(("omniglot-20w5s", "transfer-stl10"), ("maml", "first_order", "baseline", "multi_step2"), (8, 64))
    write_rows(grid, ["metastep", "hand-loop"])
    text = "\n".join(bench_tables.bench(NAME))
    assert "| omniglot-20w5s | 64 | 16 | 16 | 1.00 |" in text
    assert "| transfer-stl10, 128 | baseline, 2 | metastep | 20.00 | 1.00 | 1 |" in text
    assert "| transfer-stl10, 128 | multi_step2, 2 | hand-loop | 21.00 | 1.00 | 1 |" in text
    assert text.count("transfer-stl10") == 4  # in no other table


def write_study(name: str, *rows: dict[str, object]) -> None:
    about = {"command": "c", "commit": "0123456789abcdef", "device": "NVIDIA H200", "versions": {"torch": "2"}}
    case = about_case(Case("omniglot-5w1s", "metastep", "maml", 8, 1, 32, None, "tf32"))
    results.file_of(name).write_text(json.dumps(about | {"rows": [case | row for row in rows]}))


@pytest.mark.parametrize("what", ["startup", "profile", "precision", "mini", "mini-profile"])
def test_no_study_no_table(root: Path, what: str) -> None:
    assert list(TABLES[f"bench/h200-{what}"](f"bench/h200-{what}")) == []


def test_a_cold_start_beside_a_warm_one(root: Path) -> None:
    name, failed = "bench/h200-startup", {"note": "out of memory"}
    times = {"cold_seconds": 30.0, "warm_seconds": 9.0, "cold_process_seconds": 36.0, "warm_process_seconds": 15.04}
    write_study(name, times, failed)
    assert list(study_tables.startup(name))[-1] == "| omniglot-5w1s | maml | 30.0 | 9.0 | 36.0 | 15.0 |"


@pytest.mark.parametrize(
    ("name", "setting", "tasks"),
    [("bench/h200-profile", "omniglot-5w1s", 32), ("bench/h200-mini-profile", "miniimagenet-5w1s", 4)],
)
def test_a_profile_stands_beside_the_floor_of_its_parts(root: Path, name: str, setting: str, tasks: int) -> None:
    kernels = [
        {"name": "forward_kernel", "calls": 96, "ms": 1.5, "share": 0.5},
        {"name": "pool_kernel", "calls": 96, "ms": 0.5, "share": 0.2},
        {"name": "elementwise_kernel", "calls": 9, "ms": 1.0, "share": 0.3},
    ]
    about = {"setting": setting, "tasks": tasks}
    write_study(name, about | {"ms": 4.0, "busy_ms": 3.0, "launches": 201, "kernels": kernels})
    text = "\n".join(TABLES[name](name))
    assert f"**{setting}, maml, 8 steps**: 4.00 ms, busy for 3.00 (75%), 201 calls" in text
    least = max(floor_parts(setting, "maml", 8, 1, tasks)["forward"].milliseconds(H200))
    assert f"| forward | 2.000 | {least:.3f} | {least / 2:.0%} |" in text
    assert "| all else (episodes, Adam) | 1.000 |" in text
    assert "| `pool_kernel` | 96 | 0.500 | 20.0% |" in text


def test_precisions_stand_side_by_side(root: Path) -> None:
    name = "bench/h200-precision"
    found = {"start": "fresh", "halves_difference": 1.5}
    write_study(
        name,
        found | {"precision": "fp32", "relative_error": 1e-6, "cosine": 1.0},
        found | {"precision": "tf32", "relative_error": 2e-3, "cosine": 0.99999},
        found | {"start": "trained", "precision": "tf32", "relative_error": 3e-3, "cosine": 0.9},
        found | {"precision": "bf16", "relative_error": None, "note": "no such operator"},
    )
    assert list(study_tables.precision(name))[-2:] == [
        "| fresh | maml | 1.0e-06 (1.00000) | 2.0e-03 (0.99999) | 1.50 |",
        "| trained | maml |  | 3.0e-03 (0.90000) | 1.50 |",
    ]


def test_growth_with_tasks_and_parameters(root: Path) -> None:
    name = "bench/h200-growth"
    write_rows(Grid(("omniglot-5w1s", "omniglot-5w1s-32f"), ("maml",), (8,), tasks=(1, 32)), ["metastep"], name)
    lines = list(bench_tables.growth(name))
    assert [line for line in lines if line.startswith(("| 113,221", "| 28,"))] == [
        "| 113,221 | 1 | 80.00 (1) |",
        "| 113,221 | 32 | 80.00 (32) |",
        "| 28,965 | 1 | 80.00 (1) |",
        "| 28,965 | 32 | 80.00 (32) |",
    ]


def test_goals_are_reached_missed_or_not_measured(root: Path) -> None:
    grid = Grid(("omniglot-5w1s", "omniglot-20w5s"), ("maml", "first_order"), (8, 64), precision="tf32")
    write_rows(grid, ["metastep"])
    lines = list(goals.goals("goals"))
    assert "| 5-way 1-shot, maml | 5.00 ms | 80.00 ms | no: 1500% above |" in lines
    assert "| the same / first order's, 64 inner steps | 1.40 | 1.00 | yes |" in lines
    assert "| 5-way 1-shot, multi_step4 | 2.00 ms | not measured |  |" in lines
    assert "| start to the first step, full caches | 10.00 s | not measured |  |" in lines


def test_a_cpu_is_judged_by_the_fastest_alternative(root: Path) -> None:
    grid = Grid(("omniglot-5w1s",), ("maml", "multi_step4"), (8,), precision="fp32")
    write_rows(grid, ["metastep", "hand-loop", "torch.func"], goals.CPU)  # 80, 81 and 82 ms
    lines = list(goals.goals("goals"))
    assert f"| CPU, 5-way 1-shot, maml: time / the fastest alternative's | 1.00 | {80 / 81:.2f} | yes |" in lines
