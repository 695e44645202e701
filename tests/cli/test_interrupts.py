"""Ctrl-C before a command begins, and after."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from metastep.__main__ import main
from metastep.cli.common import refusals
from tests.cli.helpers import runnable

SCRIPT = [str(Path(sys.executable).with_name("metastep"))]
MODULE = [sys.executable, "-m", "metastep"]
PROGRAM = [sys.executable, "-c", "import metastep; metastep.SGD"]
SLOW = """
import time
try:
    print("importing", flush=True)
    time.sleep(60)
except BaseException:  # as some of what runs in C does
    raise ImportError("another error") from None
"""


def with_package(name: str, content: str, folder: Path) -> dict[str, str]:
    """The environment in which this is what importing `name` does"""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(content)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def interrupted(command: list[str], folder: Path, package: str = "torch") -> tuple[int, str]:
    """Its exit status, and what it had to say, after Ctrl-C while it imports the package"""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=with_package(package, SLOW, folder), text=True, **streams) as process:
        assert process.stdout
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        return process.wait(30), process.communicate()[1]


@pytest.mark.parametrize("command", [SCRIPT, MODULE], ids=["metastep", "-m metastep"])
@pytest.mark.parametrize("package", ["typer", "torch"])
def test_ctrl_c_while_a_package_is_imported_ends_quietly(command: list[str], package: str, tmp_path: Path) -> None:
    assert interrupted([*command, "train"], tmp_path, package) == (130, "")


LOADING_NO_TORCH = (["presets"], ["learners"], ["data", "list"], ["data", "get", "."])


@pytest.mark.parametrize("command", [words for words in runnable() if words not in LOADING_NO_TORCH], ids=" ".join)
def test_ctrl_c_while_a_command_imports_torch_ends_quietly(command: list[str], tmp_path: Path) -> None:
    assert interrupted([*MODULE, *command], tmp_path) == (130, "")


def test_a_program_that_imports_metastep_is_interrupted_as_ever(tmp_path: Path) -> None:
    status, said = interrupted(PROGRAM, tmp_path)
    assert (status, said.splitlines()[-1]) == (1, "ImportError: another error")


def test_a_job_that_is_told_to_ignore_ctrl_c_does(tmp_path: Path) -> None:
    say = "import signal, sys\nprint(signal.getsignal(signal.SIGINT))\nsys.exit()"
    ignoring = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *MODULE, "train"]
    run = subprocess.run(ignoring, env=with_package("torch", say, tmp_path), capture_output=True, text=True)
    assert run.stdout.strip() == str(signal.SIG_IGN)


@pytest.fixture
def _not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os._exit", lambda status: pytest.fail("left without a word"))


@pytest.mark.usefixtures("_not_left")
def test_ctrl_c_is_an_exception_again_when_the_command_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        with refusals():
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("metastep.cli.main.app", command)
    with pytest.raises(typer.Exit) as end:
        main()
    assert (end.value.exit_code, capsys.readouterr().err) == (130, "metastep: stopped.\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(("count", "expected"), [("1", ["alone"]), ("2", ["as a rank"])])
def test_only_a_process_of_torchrun_is_run_as_a_rank(
    count: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    monkeypatch.setenv("WORLD_SIZE", count)
    monkeypatch.setattr("metastep.cli.main.app", lambda: ran.append("alone"))
    monkeypatch.setattr("metastep.step.ranks.run_rank", lambda app: ran.append("as a rank"))
    main()
    assert ran == expected
