"""`python -m study bench modules`: any module beside the loop by hand."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from study.bench import module_cases, modules
from study.bench.module_cases import ABOUT, IMPLEMENTATIONS, MADE, Subject, Way, by_gradient, made
from study.commands import app


def call(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", "modules", *map(str, arguments)])


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def test_every_subject_is_told() -> None:
    assert list(ABOUT) == list(MADE)


@pytest.mark.parametrize("name", ["a", "tiny", "implicit"])
def test_both_agree_and_are_measured_turn_about(name: str, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    found = call("--only", name, "--implementations", "metastep", "--methods", "window 4", "--pairs", 6, "--out", path)
    assert not found.exit_code, found.output
    (row,) = rows_of(path)
    assert (row["subject"], row["implementation"], row["pairs"], row["threads"]) == (name, "metastep", 6, 1)
    assert row["ratio"][1] <= row["ratio"][0] <= row["ratio"][2]
    assert row["peak_mib"] > 0
    assert row["note"]
    assert "metastep" in found.output


def test_what_fails_or_differs_has_a_row_and_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(subject: Subject, method: str) -> Any:
        raise RuntimeError("no compiler")

    def wrong(subject: Subject, method: str) -> Any:
        step = by_gradient(subject, method)
        return lambda: (step()[0], {"w": 1.1 * step()[1]["w"]})

    for name, way in (("broken", broken), ("wrong", wrong)):
        monkeypatch.setitem(IMPLEMENTATIONS, name, Way(way))
    path = tmp_path / "found.json"
    ways = "metastep,broken,wrong"
    found = call("--only", "tiny", "--methods", "exact", "--implementations", ways, "--pairs", 6, "--out", path)
    assert not found.exit_code, found.output
    notes = {row["implementation"]: row["note"] for row in rows_of(path) if "ratio" not in row}
    assert notes == {"broken": "RuntimeError: no compiler", "wrong": "MetastepError: 10.0% off the loop by hand."}
    assert {row["implementation"] for row in rows_of(path) if "ratio" in row} >= {"metastep"}


def test_a_subject_is_the_same_at_every_call() -> None:
    before = torch.get_rng_state()
    first, second = (made("a") for _ in range(2))
    assert torch.equal(first.tasks.support[0], second.tasks.support[0])
    assert torch.equal(before, torch.get_rng_state())


def test_unknown_words_are_refused() -> None:
    found = call("--only", "f")
    assert found.exit_code
    assert "f" in found.output


def test_the_turns_are_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short steps take turns in groups"""
    asked: list[int] = []

    def seconds(step: Any, times: int, device: torch.device) -> float:
        asked.append(times)
        return 1e-3

    monkeypatch.setattr(modules, "seconds", seconds)
    modules.interleaved([partial(int, 1)], 6, torch.device("cpu"))
    assert asked[0] == 1
    assert set(asked[1:]) == {30}
    assert module_cases.IMPLICIT.solver.steps == 10


@pytest.mark.parametrize("name", ["higher", "TorchOpt", "JAX jit"])
@pytest.mark.parametrize("subject", ["a", "c"])
def test_other_packages_agree_with_the_loop(name: str, subject: str) -> None:
    way = IMPLEMENTATIONS[name]
    pytest.importorskip(str(way.package))
    of = made(subject)
    modules.require_same(way.make(of, "exact")()[1], of.hand("exact")()[1])


def test_states_alone_take_less_than_the_loop() -> None:
    of = made("perceptron")
    step = module_cases.states_alone(of, "exact")
    modules.require_same(step()[1], of.hand("exact")()[1])
    found = modules.memory(of.hand("exact"), step, torch.device("cpu"))
    assert found["peak_mib"] < found["hand_mib"]


def test_everything_is_measured_for_exact_and_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str, set[str]]] = []

    def measured(subject: Subject, method: str, ways: list[str], *rest: Any) -> list[Any]:
        asked.append((torch.get_num_threads(), method, set(ways)))
        return []

    monkeypatch.setattr(modules, "measured", measured)
    before, out = torch.get_num_threads(), ("--out", tmp_path / "found.json")
    call("--only", "tiny", "--threads", "1,2", *out)
    call("--only", "tiny", "--implementations", "metastep task by task", "--methods", "window 4", *out)
    torch.set_num_threads(before)
    usual = {"metastep", "metastep compiled"}
    assert [each[:2] for each in asked] == [(1, "exact"), (1, "window 4"), (2, "exact"), (1, "window 4")]
    assert asked[0][2] > usual
    assert [ways for _, _, ways in asked[1:]] == [usual, usual, {"metastep task by task"}]
