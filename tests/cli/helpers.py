"""All commands, found in the app, and what their help loads."""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from typer.main import get_command

from metastep.cli.main import app

LOADED_BY_HELP = """
import contextlib, io, json, sys
before = set(sys.modules)
from metastep.__main__ import main
loaded = {}
for command in json.loads(sys.argv[1]):
    sys.argv = ["metastep", *command.split(), "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        main()
    assert "Usage: metastep " + command in said.getvalue()
    loaded[command] = sorted({name.partition(".")[0] for name in sys.modules.keys() - before})
print(json.dumps(loaded))
"""


def _found(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    yield " ".join(words), command
    for name, each in getattr(command, "commands", {}).items():
        yield from _found(each, (*words, name))


COMMANDS: dict[str, Any] = dict(_found(get_command(app)))
"""By what is typed after `metastep`, groups included"""


@cache
def loaded_by_help() -> dict[str, set[str]]:
    """Top-level packages that each command's --help has imported, or the help of a command before it."""
    code = [sys.executable, "-c", LOADED_BY_HELP, json.dumps(list(COMMANDS))]
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    return {command: set(packages) for command, packages in json.loads(done.stdout).items()}


def runnable() -> Iterator[list[str]]:
    """Every command that does something, with a dot for each thing that has to be named."""
    for name, command in COMMANDS.items():
        if not hasattr(command, "commands") or command.invoke_without_command:
            yield [*name.split(), *_required(command)]


def _required(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if parameter.required:
            yield from ["."] if parameter.param_type_name == "argument" else [parameter.opts[0], "."]
