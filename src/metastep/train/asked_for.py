"""Whether the run that is in a folder is the one that was asked for."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from metastep.train.config import Config
from metastep.train.errors import RunError, problem
from metastep.train.run import Run
from metastep.train.validated import to_plain


def require_run_of(wanted: Config, folder: Path, option: str) -> None:
    """option: the one that chose the folder"""
    found = Run.open(folder).config(type(wanted))
    if apart := "; ".join(differences(to_plain(found.essential), to_plain(wanted.essential))):
        reason = f"is a run of something else ({apart})"
        raise problem(RunError, folder, reason, f"Choose another {option}, or move it")


def differences(found: Any, wanted: Any, field: str = "") -> Iterator[str]:
    """Such as 'iterations = 300, not 200'"""
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for name in dict.fromkeys((*found, *wanted)):
            yield from differences(found.get(name), wanted.get(name), f"{field}.{name}" if field else name)
    elif found != wanted:
        yield f"{field} = {found!r}, not {wanted!r}"
