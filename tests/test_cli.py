"""The command as a whole."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from metastep import __version__
from metastep.cli import app


def test_version_and_help() -> None:
    assert CliRunner().invoke(app, ["--version"]).output.strip() == f"metastep {__version__}"
    help_text = CliRunner().invoke(app, ["--help"]).output
    commands = ("demo", "train", "evaluate", "classify", "report", "presets", "transfer", "bench", "reproduce", "data")
    assert all(name in help_text for name in commands)


def test_the_demo_runs_and_can_be_called_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASTEP_CACHE", str(tmp_path / "cache"))
    arguments = ["demo", "--out", str(tmp_path / "demo"), "--iterations", "2", "--episodes", "4"]
    for _ in range(2):
        run = CliRunner().invoke(app, arguments)
        assert run.exit_code == 0, run.output
        assert all(name in run.output for name in ("untrained", "Multi-step(4)", "first order", "report.html"))
    assert "<html" in (tmp_path / "demo" / "report.html").read_text()
