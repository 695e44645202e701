"""`python -m study bench`: which rows, in what form, and what happens when it is called again."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from typer.testing import CliRunner

from metastep.data.pictures import Pictures
from metastep.errors import MetastepError
from metastep.train import presets
from study import results
from study.bench import cases, command, running, session, workload
from study.bench.cases import METHODS, PAPER_SETTINGS, QUICK, SETTINGS, STEPS, Case, Grid, Precision
from study.bench.implementations import IMPLEMENTATIONS, ours
from study.bench.measure import Cost, measure, timed
from study.bench.plan import left_out, planned
from study.bench.plot import plot
from study.bench.results import case_of, row_of
from study.bench.running import Conditions, FailedError, in_fresh_process, measured
from study.commands import app
from tests.study.bench.helpers import CPU, TINY, tiny_case

PRESETS = presets.few_shot()

ROW = [
    "setting", "implementation", "method", "steps", "window", "tasks", "chunk", "precision", "ms", "ms_spread",
    "peak_mib", "start_seconds", "note",
]  # fmt: skip
HERE = Conditions("cpu", threads=1, repeats=2)


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


@pytest.fixture
def measured_cases(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """Which cases the command would have measured; all of them cost the same"""
    seen: list[Case] = []

    def row(case: Case, conditions: Conditions) -> dict[str, Any]:
        del conditions
        seen.append(case)
        return row_of(case, Cost(ms=2.0, ms_spread=0.1, peak_mib=3.0, start_seconds=0.5))

    monkeypatch.setattr(session, "measured", row)
    monkeypatch.setattr(
        command, "QUICK", replace(QUICK, settings=(TINY,), steps=(4,), alternative_steps=(4,), tasks=(2,))
    )
    return seen


def test_the_paper_is_all_there() -> None:
    everything = planned(Grid(), ["metastep"])
    ours = [case for case in everything if case.setting in SETTINGS]
    assert [(case.setting, case.method_label, case.steps) for case in everything if case not in ours] == [
        ("transfer-stl10", label, 2) for label in ("scratch", "baseline", "multi_step2")
    ]
    windows_too_long = 4 * (1 + 3 + 7)  # of multi_step2, 4 and 8
    assert len(ours) == len(set(ours)) == 4 * len(METHODS) * len(STEPS) - windows_too_long
    assert {(case.setting, case.tasks) for case in ours} == {
        ("omniglot-5w1s", 32), ("omniglot-5w5s", 32), ("omniglot-20w1s", 16), ("omniglot-20w5s", 16),
    }  # fmt: skip
    assert {case.setting for case in ours} == set(PAPER_SETTINGS) < set(SETTINGS)


def test_mini_imagenet_is_as_the_paper_has_it() -> None:
    """All but its pictures, of which noise needs fewer"""
    for shots in (1, 5):
        case = Case(f"miniimagenet-5w{shots}s", "metastep", "multi_step", 8, 4, 4, None, "fp32")
        found, preset = ours.config_of(case, CPU), PRESETS[f"miniimagenet-5w{shots}s-multistep4"]
        assert (found.train_episodes, found.method, found.outer, found.tasks, found.steps) == (
            preset.train_episodes, preset.method, preset.outer, preset.tasks, preset.steps,
        )  # fmt: skip
        assert found.net == preset.net.changed(filters=32, head_init=None)
        assert replace(found.inner, lr=preset.inner.lr) == preset.inner


def test_real_pictures_are_those_of_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[str, Path, str]] = []

    def load(*asked: Any) -> Any:
        def classes(split: str) -> Pictures:
            loaded.append((*asked, split))
            return Pictures.of_rows(torch.zeros(1, 1, 1, 1, 1, dtype=torch.uint8), ("one",))

        return SimpleNamespace(classes=classes)

    monkeypatch.setattr(workload, "load", load)
    for setting in ("omniglot-20w1s", "miniimagenet-5w5s", "omniglot-5w5s"):
        workload.pictures(tiny_case(setting=setting, data=str(tmp_path)), CPU)
    assert loaded == [("omniglot", tmp_path, "trainval"), ("mini_imagenet", tmp_path, "train")]  # once for a process


def test_alternatives_run_what_they_have() -> None:
    cases = planned(Grid(settings=("omniglot-5w1s",)), ["metastep", "hand-loop", "higher", "torchopt"])
    others = [case for case in cases if case.implementation != "metastep"]
    assert {case.steps for case in others} == {8}
    assert {case.chunk for case in others} == {1}
    assert [case.method_label for case in others if case.implementation == "higher"] == ["maml", "first_order"]
    assert [case.method_label for case in others if case.implementation == "torchopt"] == ["maml"]
    assert len([case for case in others if case.implementation == "hand-loop"]) == 5


def test_rows_say_how_many_tasks_are_computed_together() -> None:
    cases = planned(replace(QUICK, methods=("maml",), chunk=2), ["metastep", "hand-loop", "torch.func", "jax"])
    assert [case.chunk for case in cases] == [2, 1, 2, None]
    cases = planned(
        replace(QUICK, methods=("maml",)), ["metastep", "metastep-vmap", "hand-loop", "torch.func"], chunk=3
    )
    assert [case.chunk for case in cases] == [None, 3, 1, 3]


def test_a_short_run_from_beginning_to_end(
    tmp_path: Path, measured_cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "measured", partial(_measured_here, measured_cases))
    path = tmp_path / "new" / "quick.json"
    result = call("--quick", "--repeats", 1, "--out", path)
    assert result.exit_code == 0, result.output
    content = json.loads(path.read_text())
    assert list(content) == ["command", "commit", "device", "versions", "rows"]
    assert content["command"] == "python -m study bench --threads 1 --repeats 1 --quick"
    assert len(content["rows"]) == len(measured_cases) == 9
    for row in content["rows"]:
        assert list(row) == ROW
        assert row["ms"] > 0
        assert row["start_seconds"] > 0
        assert case_of(row) in measured_cases
    assert all(name in result.output for name in ("metastep", "hand-loop", "torch.func", "multi_step4"))
    assert "<svg" in path.with_suffix(".svg").read_text()


def _measured_here(seen: list[Case], case: Case, conditions: Conditions) -> dict[str, Any]:
    """Without a process for each row"""
    seen.append(case)
    return row_of(case, running.in_this_process(case, conditions))


def test_rows_that_are_there_are_not_measured_again(tmp_path: Path, measured_cases: list[Case]) -> None:
    path = tmp_path / "rows.json"
    options = ("--quick", "--implementations", "metastep", "--out", path)
    call(*options, "--methods", "maml")
    first = json.loads(path.read_text())["rows"][0]
    assert "1 rows are in" in call(*options).output
    assert [case.method_label for case in measured_cases] == ["maml", "multi_step4", "first_order"]
    rows = json.loads(path.read_text())["rows"]
    assert len(rows) == 3
    assert rows[0] == first
    said = json.loads(path.read_text())["command"]
    assert said.count(" && ") == 1  # rows of two commands: both are told
    assert said.startswith("python -m study bench --methods maml ")


def test_meta_transfer_has_rows_of_the_same_form(tmp_path: Path, measured_cases: list[Case]) -> None:
    path = tmp_path / "rows.json"
    flags = ("--settings", "transfer-stl10,omniglot-5w1s", "--methods", "maml,baseline,multi_step2", "--steps", "8")
    result = call(*flags, "--implementations", "metastep,hand-loop", "--tasks", "4", "--out", path)
    assert result.exit_code == 0, result.output
    found = [(case.setting, case.method_label, case.steps, case.tasks) for case in measured_cases[::2]]
    assert found == [
        ("omniglot-5w1s", "maml", 8, 4),
        ("omniglot-5w1s", "multi_step2", 8, 4),
        ("transfer-stl10", "baseline", 2, 1),
        ("transfer-stl10", "multi_step2", 2, 1),
    ]
    assert [case.implementation for case in measured_cases] == ["metastep", "hand-loop"] * 4
    assert all(list(row) == ROW for row in json.loads(path.read_text())["rows"])
    assert "transfer-stl10" in result.output
    assert "<svg" in path.with_suffix(".svg").read_text()


@pytest.mark.parametrize("change", [{"commit": "another"}, {"device": "another"}, {"versions": {"torch": "another"}}])
def test_rows_of_another_commit_or_device_are(
    tmp_path: Path, measured_cases: list[Case], change: dict[str, Any]
) -> None:
    path = tmp_path / "rows.json"
    options = ("--quick", "--implementations", "metastep", "--methods", "maml", "--out", path)
    call(*options)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    call(*options)
    assert len(measured_cases) == 2
    assert len(json.loads(path.read_text())["rows"]) == 1


def test_rows_of_code_that_was_not_committed_are_never_taken_for_the_same(
    tmp_path: Path, measured_cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, changed = tmp_path / "rows.json", ""

    def git(*arguments: str) -> str:
        return changed if arguments[0] == "status" else "abc"

    monkeypatch.delenv("METASTEP_COMMIT")
    monkeypatch.setattr("metastep.train.device._git", git)
    options = ("--quick", "--implementations", "metastep", "--methods", "maml", "--out", path)
    for changed, times in (("", 1), ("", 1), (" M engine.py", 2), (" M engine.py", 3)):  # noqa: B007
        call(*options)
        assert len(measured_cases) == times
    assert json.loads(path.read_text())["commit"] == "abc, changed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_what_is_done_is_kept(
    number: signal.Signals, tmp_path: Path, measured_cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = session.measured

    def second_is_interrupted(case: Case, conditions: Conditions) -> dict[str, Any]:
        if len(measured_cases) == 1:
            signal.raise_signal(number)
        return row(case, conditions)

    monkeypatch.setattr(session, "measured", second_is_interrupted)
    result = call("--quick", "--out", tmp_path / "rows.json")
    assert result.exit_code == 130
    assert "continues" in result.output
    assert len(json.loads((tmp_path / "rows.json").read_text())["rows"]) == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--settings", "omniglot-5w1"), "Did you mean 'omniglot-5w1s'"),
        (("--methods", "mamml"), "Did you mean 'maml'"),
        (("--implementations", "metastop"), "Did you mean 'metastep'"),
        (("--steps", "1,two"), "--steps 1,two"),
        (("--steps", "0"), "--steps 0"),
        (("--precision", "fp8"), "--precision fp8"),
        (("--precision", "bf16", "--device", "cpu"), "only our kernels for GPUs multiply in it"),
        (("--device", "tpu"), "'tpu' is not one of"),
        (("--data", "tests"), "no omniglot is there"),
        (("--data", "tests", "--settings", "miniimagenet-5w1s"), "no mini_imagenet is there"),
    ],
)
def test_what_cannot_work_is_refused(flags: tuple[str, ...], said: str, tmp_path: Path) -> None:
    result = call("--quick", "--out", tmp_path / "rows.json", *flags)
    assert result.exit_code == 2
    assert said in result.output


def test_only_our_kernels_multiply_in_bf16() -> None:
    grid = Grid(("omniglot-5w1s", "transfer-stl10"), steps=(8,), precision="bf16")
    found = planned(grid, ["metastep", "metastep-vmap", "torch.func"])
    assert {(case.implementation, case.setting) for case in found} == {("metastep", "omniglot-5w1s")}
    assert {case.method for case in found} == {"maml", "multi_step", "first_order", "reptile", "imaml"}
    with pytest.raises(MetastepError, match="it does not multiply in bf16"):
        command.with_precision(["metastep", "torch.func"], "bf16", asked=True)
    assert command.with_precision(["metastep", "torch.func"], "bf16", asked=False) == ["metastep"]
    assert command.with_precision(["metastep", "torch.func"], "tf32", asked=True) == ["metastep", "torch.func"]


@pytest.mark.parametrize("name", ["jax", "jax-remat"])
def test_jax_is_not_said_to_be_in_float64(name: str) -> None:
    served = {
        precision: IMPLEMENTATIONS[name].serves(Case("omniglot-5w1s", name, "maml", 8, 1, 32, None, precision))
        for precision in get_args(Precision)
    }
    assert served == {"fp32": True, "tf32": True, "bf16": False, "fp64": False}
    with pytest.raises(MetastepError, match=f"--implementations {name}: it does not multiply in fp64"):
        command.with_precision(["metastep", name], "fp64", asked=True)
    assert command.with_precision(["metastep", "torch.func", name], "fp64", asked=False) == ["metastep", "torch.func"]


def test_a_file_that_is_something_else_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    path.write_text("[]")
    result = call("--quick", "--out", path)
    assert (result.exit_code, path.read_text()) == (2, "[]")


def test_a_fresh_process_measures_one_case() -> None:
    case = Case("omniglot-5w1s", "hand-loop", "first_order", 1, 1, 1, 1, "fp32")
    cost = in_fresh_process(case, Conditions("cpu", threads=1, repeats=1))
    assert 0.1 < cost.ms < 60_000
    assert 1 < cost.peak_mib < 4_000
    assert cost.ms_spread == 0


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="a peak is forgotten on Linux only")
def test_what_was_taken_before_hides_nothing() -> None:
    code = """
import torch
from study.bench.machines import TorchMachine
torch.ones(50_000_000)  # 191 MiB, freed at once
machine = TorchMachine(torch.device("cpu"))
kept = torch.ones(25_000_000)
print(machine.peak_mib())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=results.ROOT, capture_output=True, text=True, check=True)
    assert 90 < float(done.stdout) < 110


def test_a_failure_is_a_row_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FailedError, match="there is no setting 'nowhere'"):
        running.in_this_process(tiny_case(setting="nowhere"), HERE)
    monkeypatch.setattr(running, "in_fresh_process", _fail)
    row = measured(tiny_case(), HERE)
    assert (row["ms"], row["note"]) == (None, "out of memory")
    assert list(row) == ROW


def _fail(case: Case, conditions: Conditions) -> Cost:
    raise FailedError("out of memory")


def test_median_and_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by 1 s whenever a step runs, and by 3 s for the last"""
    seconds = iter([1.0] * 2 + [1.0] + [1.0, 1.0, 3.0])
    clock = _Clock(seconds)
    monkeypatch.setattr("study.bench.measure.time.perf_counter", lambda: clock.now)
    times = timed(clock.step, clock, repeats=4)
    assert times == [1, 1, 1, 3]


class _Clock:
    def __init__(self, seconds: Iterator[float]) -> None:
        self.now, self.seconds = 0.0, seconds

    def step(self) -> None:
        self.now += next(self.seconds)

    def wait(self) -> None: ...

    def peak_mib(self) -> float:
        return 0.0


def test_short_steps_are_timed_in_groups() -> None:
    cost = measure(tiny_case(method="first_order", steps=1), CPU, repeats=2)
    assert 0 < cost.ms < 1e3 * cost.start_seconds + 200


@pytest.mark.parametrize("mib", [[0.0], [0.0, 5.0], [1.0, 9.0], [2.0, 3.0]])
def test_any_numbers_can_be_drawn(mib: list[float], tmp_path: Path) -> None:
    costs = [Cost(10 * m + 1, 0.0, m, 0.0) for m in mib]
    rows = [row_of(tiny_case(steps=2**i), cost) for i, cost in enumerate(costs)]
    plot([*rows, row_of(tiny_case(steps=64), None, "out of memory")], "a device", tmp_path / "plot.svg")
    assert "metastep" in (tmp_path / "plot.svg").read_text()


def test_imaml_goes_without_weight_decay() -> None:
    assert cases.inner_of(tiny_case(method="imaml")).weight_decay == 0
    assert cases.inner_of(tiny_case()).weight_decay == 1e-4


def test_a_method_without_a_row_is_named() -> None:
    grid = Grid(settings=("omniglot-5w1s",), methods=("maml", "multi_step4"), steps=(2,), alternative_steps=(2,))
    assert left_out(grid, planned(grid, ["metastep"])) == ["multi_step4"]
    grid = replace(grid, steps=(2, 4))
    assert left_out(grid, planned(grid, ["metastep"])) == []
