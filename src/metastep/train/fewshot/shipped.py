"""Learners that come with metastep, and how a learner is named on the command line."""

from pathlib import Path

import metastep
from metastep.errors import MetastepError

FOLDER = Path(metastep.__file__).parent / "learners"


def shipped() -> dict[str, Path]:
    """Name -> file of every learner in the package"""
    return {path.stem: path for path in sorted(FOLDER.glob("*.safetensors"))}


def find_learner(name: str) -> Path:
    """The folder of a run, a learner's file, or the name of one that comes with metastep; for `Learner.load`"""
    path, here = Path(name).expanduser(), shipped()
    if path.exists() or name not in here:
        _require_there(path, name, here)
        return path
    return here[name]


def _require_there(path: Path, name: str, here: dict[str, Path]) -> None:
    if not path.exists():
        named = f", or one that comes with metastep: {', '.join(here)}" if here else ""
        raise MetastepError(
            f"{name!r}: there is no such run or learner. Give the folder of a run, a learner's file{named}."
        )
