"""A run that is made longer ends as if it had been started so; where it cannot, it is refused and left as it was."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from typer.testing import CliRunner

from metastep.cli.common import UNFINISHED
from metastep.errors import MetastepError
from metastep.train import remembered
from metastep.train.config import FewShot
from metastep.train.loop import resume, train
from metastep.train.run import Run
from tests.train.fewshot.helpers import CARRIED, TINY, loading, stripes, tiny
from tests.train.fewshot.test_commands import app
from tests.train.fewshot.test_distributed import two_ranks
from tests.train.fewshot.test_train import rows_of, stop_before

SHORT = tiny(iterations=6)  # with a validation, and a best, after 4 and 8


def kept(run: Path) -> tuple[Any, ...]:
    """All that training left, but how long it took"""
    timeless = [{**row, "seconds": None} for row in rows_of(run)]
    checkpoints = [exactly({**tree, "trained": {**tree["trained"], "seconds": None}}) for tree in loaded(run)]
    return Run(run).config(FewShot), timeless, checkpoints


def loaded(run: Path) -> list[dict[str, Any]]:
    return [Run(run).load("last"), Run(run).load("best")]


def exactly(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: exactly(part) for name, part in tree.items()}
    return tree.tolist() if isinstance(tree, Tensor) else tree


def test_six_iterations_made_ten_are_ten(tmp_path: Path) -> None:
    train(tiny(iterations=10), tmp_path / "ten")
    assert train(SHORT, tmp_path / "six").iterations == 6
    assert resume(tmp_path / "six", changes={"iterations": "10"}).iterations == 10
    assert kept(tmp_path / "six") == kept(tmp_path / "ten")
    steps = [row["step"] for row in rows_of(tmp_path / "six") if row["kind"] == "validation"]
    assert steps == [4, 8]


def test_a_run_that_was_stopped_can_be_asked_for_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(SHORT, tmp_path / "six")
    stop_before(monkeypatch, 1)
    assert train(TINY, tmp_path / "twelve").iterations == 2
    assert resume(tmp_path / "twelve", changes={"iterations": "6"}).iterations == 6
    assert kept(tmp_path / "twelve") == kept(tmp_path / "six")


def test_ranks_make_a_run_longer_together(tmp_path: Path) -> None:
    train(SHORT, tmp_path / "run")
    done = two_ranks(SHORT, tmp_path / "run", changes={"iterations": "10"})
    assert [status for status, _ in done] == [0, 0], done
    assert loaded(tmp_path / "run")[0]["trained"]["iterations"] == 10
    assert Run(tmp_path / "run").config(FewShot) == tiny(iterations=10)
    refused = two_ranks(SHORT, tmp_path / "run", changes={"iterations": "10"})
    assert [status for status, _ in refused] == [2, 2], refused


@pytest.mark.parametrize(
    ("config", "iterations", "message"),
    [
        (SHORT, 6, r"'run': has made 6 iterations, and iterations=6 asks for no more. Ask for more"),
        (SHORT, 0, r"iterations = 0 must be at least 1"),
        (
            replace(CARRIED, iterations=6),
            10,
            r"'run': its rate has a linear schedule over the 6 iterations .* start a new run with iterations=10",
        ),
    ],
)
def test_what_would_not_be_the_same_is_refused(
    config: FewShot, iterations: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(config, Path("run"))
    before = kept(Path("run"))
    with pytest.raises(MetastepError, match=message):
        resume(Path("run"), changes={"iterations": str(iterations)})
    assert kept(Path("run")) == before


def test_a_schedule_is_gone_on_with_to_the_end_that_it_was_made_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_before(monkeypatch, 1)
    train(CARRIED, tmp_path / "run")
    with pytest.raises(MetastepError, match="linear schedule over the 12"):
        resume(tmp_path / "run", changes={"iterations": "13"})
    assert resume(tmp_path / "run", changes={"iterations": "12"}).iterations == 12


def absent(*asked: object, **options: object) -> None:
    raise MetastepError("the data are not here")


def test_a_run_that_cannot_go_on_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(SHORT, tmp_path / "run")
    failing: list[tuple[Callable[..., Any], str]] = [(absent, "not here"), (loading(stripes), "is writing this run")]
    with Run(tmp_path / "run").lock():
        for load, message in failing:
            monkeypatch.setattr(remembered, "load", load)
            with pytest.raises(MetastepError, match=message):
                resume(tmp_path / "run", changes={"iterations": "10"})
    assert Run(tmp_path / "run").config(FewShot).iterations == 6


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train(SHORT, Path("run"))
    stop_before(monkeypatch, 7)
    stopped = CliRunner().invoke(app, ["resume", "run", "iterations=10"])
    assert stopped.exit_code == UNFINISHED, stopped.output
    assert "Stopped after 8 of 10 iterations" in stopped.output
    done = CliRunner().invoke(app, ["resume", "run"])
    assert done.exit_code == 0
    assert "10 iterations in" in done.output
    refused = CliRunner().invoke(app, ["resume", "run", "--iterations", "12", "--tasks", "2"])
    assert refused.exit_code == 2
    assert "tasks: a run continues as it was configured" in refused.output
