"""The command as a whole."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from metastep import __version__
from metastep.cli import main as cli
from metastep.cli import quiet
from metastep.cli.common import refusals
from metastep.cli.main import app
from metastep.train.fewshot import train as training
from metastep.train.run import Run


def test_version_and_help() -> None:
    assert CliRunner().invoke(app, ["--version"]).output.strip() == f"metastep {__version__}"
    help_text = CliRunner().invoke(app, ["--help"]).output
    commands = ("demo", "train", "evaluate", "classify", "report", "presets", "transfer", "data")
    assert all(name in help_text for name in commands)


def test_the_demo_runs_and_can_be_called_again(tmp_path: Path) -> None:
    arguments = ["demo", "--out", str(tmp_path / "demo"), "--iterations", "2", "--episodes", "4"]
    for _ in range(2):
        run = CliRunner().invoke(app, arguments)
        assert run.exit_code == 0, run.output
        assert all(name in run.output for name in ("untrained", "Multi-step(4)", "first order", "report.html"))
    other = CliRunner().invoke(app, [*arguments[:-3], "3", *arguments[-2:]])
    assert other.exit_code == 2
    assert "multistep4': is a run of something else (outer.iterations = 2, not 3). Choose another --out" in other.output
    assert "<html" in (tmp_path / "demo" / "report.html").read_text()


def test_the_demo_stops_at_ctrl_c_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*arguments: Any) -> dict[str, str]:
        signal.raise_signal(signal.SIGINT)
        return {}

    arguments = ["demo", "--out", str(tmp_path / "demo"), "--iterations", "2", "--episodes", "4"]
    with monkeypatch.context() as patch:
        patch.setattr(training, "environment", pressed)
        stopped = CliRunner().invoke(app, arguments)
    assert (stopped.exit_code, "Call it again to go on" in stopped.output) == (130, True)
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


# Ctrl-C while torch is imported


SCRIPT = [str(Path(sys.executable).with_name("metastep"))]
MODULE = [sys.executable, "-m", "metastep"]
PROGRAM = [sys.executable, "-c", "import metastep; metastep.SGD"]


def with_torch(content: str, folder: Path) -> dict[str, str]:
    """The environment in which this is what importing torch does"""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(content)
    return {**os.environ, "PYTHONPATH": str(folder)}


SLOW = """
import time
try:
    print("importing", flush=True)
    time.sleep(60)
except BaseException:  # as some of what runs in C does
    raise ImportError("another error") from None
"""


@pytest.mark.parametrize("command", [SCRIPT, MODULE], ids=["metastep", "-m metastep"])
def test_ctrl_c_while_torch_is_imported_ends_quietly(command: list[str], tmp_path: Path) -> None:
    assert interrupted(command, tmp_path) == (130, "")


def test_a_program_that_imports_metastep_is_interrupted_as_ever(tmp_path: Path) -> None:
    status, said = interrupted(PROGRAM, tmp_path)
    assert (status, said.splitlines()[-1]) == (1, "ImportError: another error")


def interrupted(command: list[str], folder: Path) -> tuple[int, str]:
    """Its exit status, and what it had to say"""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, "presets"], env=with_torch(SLOW, folder), text=True, **streams) as process:
        assert process.stdout
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        return process.wait(30), process.communicate()[1]


def test_a_job_that_is_told_to_ignore_ctrl_c_does(tmp_path: Path) -> None:
    say = "import signal, sys\nprint(signal.getsignal(signal.SIGINT))\nsys.exit()"
    ignoring = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *MODULE]
    run = subprocess.run(ignoring, env=with_torch(say, tmp_path), capture_output=True, text=True)
    assert run.stdout.strip() == str(signal.SIG_IGN)


def test_ctrl_c_is_an_exception_again_when_the_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os._exit", lambda status: pytest.fail("left without a word"))
    monkeypatch.setattr(cli, "run_rank", lambda app: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, quiet._leave)
    try:
        with pytest.raises(KeyboardInterrupt):
            cli.main()
    finally:
        signal.signal(signal.SIGINT, before)
