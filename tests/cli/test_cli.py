"""The command as a whole."""

import signal
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from metastep import __version__
from metastep.cli.common import refusals
from metastep.cli.main import app
from metastep.train import loop
from metastep.train.presets import shipped
from metastep.train.run import Run


def test_version_and_help() -> None:
    assert CliRunner().invoke(app, ["--version"]).output.strip() == f"metastep {__version__}"
    help_text = CliRunner().invoke(app, ["--help"]).output
    commands = (
        "train",
        "resume",
        "evaluate",
        "classify",
        "compare",
        "report",
        "presets",
        "learners",
        "demo",
        "play",
        "data",
    )
    assert all(name in help_text for name in commands)


def test_learners_are_listed_with_what_they_are() -> None:
    said = " ".join(CliRunner().invoke(app, ["learners"]).output.split())
    assert "omniglot-5w1s A few-shot learner of handwritten characters" in said
    assert all(name in said for name in shipped())


def test_the_demo_runs_and_can_be_called_again(tmp_path: Path) -> None:
    arguments = ["demo", "--out", str(tmp_path / "demo"), "--iterations", "2", "--episodes", "4"]
    for _ in range(2):
        run = CliRunner().invoke(app, arguments)
        assert run.exit_code == 0, run.output
        assert all(
            name in run.output for name in ("untrained", "Multi-step(4)", "exact MAML", "first order", "report.html")
        )
    other = CliRunner().invoke(app, [*arguments[:-3], "3", *arguments[-2:]])
    assert other.exit_code == 2
    assert (
        "multistep4': is a run of something else (iterations = 2, not 3; validation.every = 2, not 3). Choose another"
        in other.output
    )
    assert "<html" in (tmp_path / "demo" / "report.html").read_text()


def test_the_demo_stops_at_ctrl_c_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*arguments: Any) -> dict[str, str]:
        signal.raise_signal(signal.SIGINT)
        return {}

    arguments = ["demo", "--out", str(tmp_path / "demo"), "--iterations", "2", "--episodes", "4"]
    with monkeypatch.context() as patch:
        patch.setattr(loop, "environment", pressed)
        stopped = CliRunner().invoke(app, arguments)
    assert (stopped.exit_code, "Run it again to continue" in stopped.output) == (130, True)
    (folder,) = (tmp_path / "demo").iterdir()  # the other learner has not begun
    assert Run(folder).load()["trained"]["iterations"] == 1
    assert not (folder / "evaluations").exists()
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert Run(folder).load()["trained"]["iterations"] == 2


def test_what_is_stopped_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as end, refusals():
        raise KeyboardInterrupt
    assert (end.value.exit_code, capsys.readouterr().err) == (130, "metastep: stopped.\n")
