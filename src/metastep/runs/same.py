"""Whether the run that is in a folder is the one that was asked for."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from metastep.runs.errors import RunError, problem
from metastep.runs.run import Run

Config = TypeVar("Config")


def require_same(folder: Path, wanted: Config, same: Callable[[Config, Config], bool], option: str) -> None:
    """same: whether two configurations differ in nothing that matters; option: the one that chose the folder"""
    found = Run.open(folder).config(type(wanted))
    if not same(found, wanted):
        reason = f"is a run of something else ({'; '.join(differences(found, wanted))})"
        raise problem(RunError, folder, reason, f"Choose another {option}, or move it")


def differences(found: Any, wanted: Any, field: str = "") -> Iterator[str]:
    """Such as 'outer.iterations = 300, not 200'"""
    if found == wanted:
        return
    if is_dataclass(found) and type(found) is type(wanted):
        for each in fields(found):
            path = f"{field}.{each.name}" if field else each.name
            yield from differences(getattr(found, each.name), getattr(wanted, each.name), path)
    else:
        yield f"{field} = {found!r}, not {wanted!r}"
