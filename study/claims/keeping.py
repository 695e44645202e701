"""What claims rest on, kept next to them: what each finished run found, one small file each.

With these files claims are judged again, and seeds are added, where the runs themselves are no more.
"""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from metastep.errors import MetastepError
from metastep.train.config import FewShot, Transfer
from metastep.train.io import explained, read_file, replace_file
from metastep.train.validated import from_plain, to_plain
from study import version_1
from study.claims.outcomes import Made, Outcome

FOLDER = "outcomes"  # in that of the claims


def keep(folder: Path, name: str, outcome: Outcome) -> None:
    with explained(folder, "made"):
        folder.mkdir(parents=True, exist_ok=True)
    content = to_plain(outcome)
    made = content.pop("made")  # says where and by what, as every file of results does at its beginning
    text = json.dumps({"command": command(outcome), **made, **content}, ensure_ascii=False) + "\n"
    replace_file(folder / f"{name}-seed{outcome.seed}.json", text.encode())


def command(outcome: Outcome) -> str:
    """Return the command that makes such a run again. How it was tested is in the outcome."""
    fewer = f" iterations={outcome.iterations}" if outcome.iterations < outcome.full else ""
    how = f"seed={outcome.seed} precision={outcome.precision}{fewer}"
    return f"metastep train {outcome.preset} {how} --data DATA"


def kept(folder: Path, name: str) -> dict[int, Outcome]:
    """By seed"""
    pattern = re.compile(rf"{re.escape(name)}-seed(\d+)\.json")
    found = {int(match[1]): path for path in folder.glob("*.json") if (match := pattern.fullmatch(path.name))}
    return {seed: _of_seed(seed, found[seed]) for seed in sorted(found)}


def _of_seed(seed: int, path: Path) -> Outcome:
    outcome = read(path)
    if outcome.seed != seed:
        raise MetastepError(f"{str(path)!r}: is of seed {outcome.seed}, by what it says. Remove it, or name it so.")
    return outcome


def read(path: Path) -> Outcome:
    try:
        content = json.loads(read_file(path))
        content.pop("command", None)  # for people
        content["config"] = _config(content["config"])
        content["made"] = {field.name: content.pop(field.name) for field in fields(Made)}
        return from_plain(Outcome, content)
    except (ValueError, AttributeError, KeyError) as error:
        raise MetastepError(f"{str(path)!r}: is no outcome of a run ({error}). Restore it, or remove it.") from error


def _config(plain: dict[str, Any]) -> FewShot | Transfer:
    """Of the run; those of version 1 say the same in other words"""
    if version_1.is_old(plain):
        return version_1.read(plain)
    return from_plain(Transfer, plain) if "epochs" in plain else from_plain(FewShot, plain)
