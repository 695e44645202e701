"""`python -m study bench pairs`: turn about, medians with intervals, and the history by commit."""

import json
import random
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from metastep.errors import MetastepError
from study.bench import measure, pair_studies, pairs
from study.bench.cases import SETTINGS, STANDARD, Case, Grid
from study.bench.history import append, entries
from study.bench.pairs import interleaved, median, numbers, paired
from study.bench.results import case_of
from study.bench.running import Conditions, FailedError
from study.commands import app
from tests.study.bench.helpers import SETTING, TINY, tiny_case

HERE = Conditions("cpu", threads=1, repeats=15)


def call(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", *map(str, arguments)])


@pytest.fixture(autouse=True)
def _standard_is_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, STANDARD, SETTING)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """What a process for two cases would print: ours takes half as long"""
    found = [[0.001 * (10 + i), 0.002 * (10 + i)] for i in range(15)]
    monkeypatch.setattr(pairs, "answer", lambda module, asked: [found, "captured"])
    return found


# ---- the interval


@pytest.mark.parametrize(("n", "low", "high"), [(6, 1, 6), (15, 4, 12), (16, 4, 13), (25, 8, 18), (100, 40, 61)])
def test_the_interval_lies_between_the_order_statistics_of_the_sign_test(n: int, low: int, high: int) -> None:
    """Ranks as tables of distribution-free intervals have them"""
    values = list(range(1, n + 1))
    random.Random(0).shuffle(values)
    assert median([float(x) for x in values]) == ((n + 1) / 2, low, high)


@pytest.mark.parametrize("n", [15, 30])
def test_the_interval_holds_the_median_nineteen_times_out_of_twenty(n: int) -> None:
    """Of skewed times, too, as those of a busy machine are"""
    draw = random.Random(0)
    found = [median([draw.lognormvariate(0, 1) for _ in range(n)]) for _ in range(2_000)]
    inside = sum(low <= 1 <= high for _, low, high in found) / len(found)
    assert 0.95 <= inside < 0.99


def test_of_five_there_is_none() -> None:
    with pytest.raises(MetastepError, match="5 pairs: a median has an interval of 95% from 6 on"):
        median([1.0] * 5)


def test_the_ratio_is_of_turns_that_stand_together() -> None:
    """A machine that slows down for both does not move it"""
    row = numbers([(0.001 * slower, 0.002 * slower) for slower in (1, 1, 1, 9, 9, 9, 9)])
    assert row["ratio"] == [0.5, 0.5, 0.5]
    assert (row["pairs"], row["ms"], row["other_ms"]) == (7, [9, 1, 9], [18, 2, 18])


# ---- the turns


class Way(NamedTuple):
    name: str
    seen: list[str]
    path: str = "captured"
    machine: Any = None

    def step(self) -> None:
        self.seen.append(self.name)


class Still:
    def wait(self) -> None: ...


def test_they_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(pairs, "started", lambda case, device: Way(case.implementation, seen, machine=Still()))
    monkeypatch.setattr(pairs, "group_of", lambda step, machine: 1)
    found, path = interleaved([tiny_case(), tiny_case(implementation="hand-loop")], HERE)
    assert seen == ["metastep", "hand-loop"] * 15
    assert path == "captured"
    assert all(len(turn) == 2 for turn in found)


def test_what_others_compute_on_the_processor_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    way = Way("metastep", [], machine=Still())
    monkeypatch.setattr(Way, "step", lambda self: time.sleep(0.01))
    monkeypatch.setattr(pairs, "started", lambda case, device: way)
    monkeypatch.setattr(pairs, "group_of", lambda step, machine: 1)
    (turn,), _ = interleaved([tiny_case()], Conditions("cpu", threads=1, repeats=1))
    assert turn[0] < 0.005


def test_short_steps_are_timed_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "seconds_of", lambda step, machine, number: 0.003 * number)
    assert measure.group_of(lambda: None, Still()) == 67  # type: ignore[arg-type]


def test_a_pair_in_a_process_of_its_own() -> None:
    case = Case(STANDARD, "metastep", "first_order", 1, 1, 1, None, "fp32")
    grid = Grid(("omniglot-5w1s",), ("first_order",), (1,), tasks=(1,))
    ((ours, other),) = paired(grid, ("metastep", "hand-loop"), 4)
    assert (ours, other.chunk) == (case, 1)
    row = pairs.row_of_pair(ours, other, Conditions("cpu", threads=1, repeats=15))
    assert case_of(row) == case
    assert (row["other"], row["pairs"]) == ("hand-loop", 15)
    for name in ("ms", "other_ms", "ratio"):
        value, low, high = row[name]
        assert 0 < low <= value <= high
    assert row["note"]


# ---- which pairs


def test_pairs_are_the_cases_that_both_have() -> None:
    grid = Grid((STANDARD, TINY), ("maml", "multi_step4", "imaml"), (4, 8))
    found = paired(grid, ("metastep", "higher"), 4)
    assert [(a.setting, a.method, a.steps) for a, _ in found] == [
        (STANDARD, "maml", 4), (STANDARD, "maml", 8), (TINY, "maml", 4), (TINY, "maml", 8),
    ]  # fmt: skip
    assert {(a.implementation, b.implementation, a.chunk, b.chunk) for a, b in found} == {
        ("metastep", "higher", None, 1)
    }
    with pytest.raises(MetastepError, match="metastep-vmap and hand-loop have no case in common"):
        paired(Grid((TINY, "transfer-stl10"), ("baseline", "imaml"), (4,)), ("metastep-vmap", "hand-loop"), 4)


# ---- the command and the file


def test_the_history_has_a_line_for_each_commit(
    tmp_path: Path, turns: list[list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "history.jsonl"
    for commit in ("abc", "def"):
        monkeypatch.setenv("METASTEP_COMMIT", commit)
        result = call("pairs", "--methods", "maml", "--tasks", 2, "--out", path)
        assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["commit"] for row in rows] == ["abc", "def"]
    assert {"command", "date", "device", "versions", "pairs", "ms", "other_ms", "ratio"} <= rows[0].keys()
    assert rows[0]["command"].startswith("python -m study bench pairs --methods maml --implementations ")
    assert rows[0]["command"].endswith(" metastep,hand-loop --tasks 2 --threads 1 --pairs 15")
    assert (rows[0]["ms"], rows[0]["ratio"]) == ([17.0, 13.0, 21.0], [0.5, 0.5, 0.5])
    for said in (result.output, call("history", path).output):
        assert said.count("hand-loop") == 1  # one case, two commits
        assert "abc" in said
        assert "17 [13, 21]" in said
        assert "2 tasks, " in said


def test_only_what_was_measured_now_is_shown_with_its_history(tmp_path: Path, turns: list[list[float]]) -> None:
    path = tmp_path / "history.jsonl"
    call("pairs", "--methods", "multi_step4", "--out", path)
    said = call("pairs", "--methods", "maml", "--out", path).output
    assert "multi_step4" not in said
    assert len(entries(path)) == 2
    assert "multi_step4" in call("history", path).output


def test_code_that_no_commit_has_is_measured_but_not_kept(
    tmp_path: Path, turns: list[list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        asked.append(arguments)
        return " M changed.py" if arguments[0] == "status" else "abc"

    asked: list[tuple[str, ...]] = []
    monkeypatch.delenv("METASTEP_COMMIT")
    monkeypatch.setattr("metastep.train.device._git", git)
    path = tmp_path / "history.jsonl"
    result = call("pairs", "--methods", "maml", "--out", path)
    assert "Nothing is kept: no commit has this code" in result.output
    assert "17 [13, 21]" in result.output
    assert not path.exists()
    study = next(words for words in asked if words[0] == "status")[-1]
    assert Path(study, "bench", "pairs.py").exists()  # the loop by hand is code too


def test_a_pair_that_fails_does_not_stop_the_others(
    tmp_path: Path, turns: list[list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    row_of_pair = pairs.row_of_pair

    def first_fails(case: Case, other: Case, conditions: Conditions) -> Any:
        if case.method == "maml":
            raise FailedError("out of memory")
        return row_of_pair(case, other, conditions)

    monkeypatch.setattr(pair_studies, "row_of_pair", first_fails)
    result = call("pairs", "--out", tmp_path / "history.jsonl")
    assert "out of memory" in result.output
    assert [row["method"] for row in entries(tmp_path / "history.jsonl")] == ["multi_step"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pairs", "--implementations", "metastep"), "name two, such as metastep,hand-loop"),
        (("pairs", "--implementations", "metastep,metastep"), "name two"),
        (("pairs", "--implementations", "metastep,hand-lop"), "Did you mean 'hand-loop'"),
        (("pairs", "--pairs", "14"), "greater than or equal to 15"),
        (("pairs", "--methods", "imaml"), "none of them has imaml"),
        (("history", "none.jsonl"), "python -m study bench pairs"),
    ],
)
def test_what_cannot_work_is_refused(arguments: tuple[str, ...], said: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    append(path, {"a": 1})
    append(path, {"a": 2})
    assert entries(path) == [{"a": 1}, {"a": 2}]
    path.write_text(path.read_text() + '{"a":')
    with pytest.raises(MetastepError, match="is no history"):
        entries(path)
