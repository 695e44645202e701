"""The arguments of an experiment, and the command that asks for the same rows again."""

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

UNTOLD = ("budget", "runs", "together")  # where runs are, how many at a time, and for how long: rows are the same


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser for `python -m study run NAME`. The description is the experiment's docstring."""
    formatter = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(f"python -m study run {name}", description=description, formatter_class=formatter)


def add_data(arguments: argparse.ArgumentParser) -> None:
    """Add --data."""
    arguments.add_argument("--data", type=Path, help="the data directory")


def add_runs(arguments: argparse.ArgumentParser) -> None:
    """Add the folders of runs that an experiment looks at."""
    arguments.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")


def command(name: str, options: argparse.Namespace, *untold: str) -> str:
    """Return the command as it is to be typed, with what was left to the defaults. Folders have placeholders.

    `name` may include positional arguments; `untold` are options that the rows do not depend on.
    """
    told = {option: value for option, value in vars(options).items() if option not in (*UNTOLD, *untold)}
    words = [word for option, value in told.items() for word in _words(option, value)]
    return " ".join(["python -m study run", name, *map(shlex.quote, words)])


def _words(option: str, value: Any) -> Iterator[str]:
    if value is None or value is False or value in ("", []):
        return
    yield f"--{option.replace('_', '-')}"
    if option == "data":
        yield "DATA"
    elif value is not True:
        yield from map(str, value) if isinstance(value, list | tuple) else (str(value),)
