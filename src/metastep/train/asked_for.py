"""Whether the run that is in a folder is the one that was asked for."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from metastep.train.errors import RunError, problem
from metastep.train.run import Run


class Essential(Protocol):
    @property
    def essential(self) -> Any:
        """Without what makes no other run of it"""


Config = TypeVar("Config", bound=Essential)


def require_run_of(wanted: Config, folder: Path, option: str) -> None:
    """option: the one that chose the folder"""
    found = Run.open(folder).config(type(wanted))
    if apart := "; ".join(differences(found.essential, wanted.essential)):
        reason = f"is a run of something else ({apart})"
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
