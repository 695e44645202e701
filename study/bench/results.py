"""Files of results: {command, commit, device, versions, rows}, written anew after every row."""

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from metastep.errors import MetastepError
from metastep.train.device import CHANGED, commit
from metastep.train.io import read_file, replace_file
from study.bench.cases import Case
from study.bench.measure import Cost

Row = dict[str, Any]


def about_case(case: Case) -> Row:
    return {name: value for name, value in asdict(case).items() if name != "data"}


def row_of(case: Case, cost: Cost | None, note: str = "") -> Row:
    about = about_case(case)
    if cost is None:
        return about | {"ms": None, "ms_spread": None, "peak_mib": None, "start_seconds": None, "note": note}
    numbers = {"ms": round(cost.ms, 3), "ms_spread": round(cost.ms_spread, 3), "peak_mib": round(cost.peak_mib, 1)}
    numbers |= {"start_seconds": round(cost.start_seconds, 2)}
    return about | numbers | {"note": "; ".join(filter(None, (cost.path, note)))}


def case_of(row: Row) -> Case:
    return Case(**{name: row[name] for name in Case.__dataclass_fields__ if name != "data"})


def provenance(command: str, device: str, packages: Iterable[str] = (), folders: Iterable[Path] = ()) -> dict[str, Any]:
    """Return what makes the numbers again. `folders` have code that takes part, in addition to the package."""
    return {
        "command": command,
        "commit": commit(*folders),
        "device": device,
        "versions": {"python": platform.python_version(), "torch": torch.__version__} | _versions(packages),
    }


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # importable, but not installed in the usual way
            found[package] = "unknown"
    return found


def write(path: Path, about: Mapping[str, Any], rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps({**about, "rows": list(rows)}, indent=1) + "\n").encode())


def resumed(path: Path, about: dict[str, Any]) -> tuple[dict[str, Any], list[Row]]:
    """Return what `path` has already, if commit, device and versions are the same. Failures are tried again.

    What was measured on code that no commit has cannot be known to be the same. Rows of several commands can stand in
    one file: then all of these are told.
    """
    if not path.exists() or about["commit"].endswith(CHANGED):
        return about, []
    try:
        content = json.loads(read_file(path))
        versions = content["versions"] | about["versions"]
        agree = versions == about["versions"] | content["versions"]  # whichever of the two has the last word
        if not agree or any(content[key] != about[key] for key in ("commit", "device")):
            return about, []
        commands = dict.fromkeys([*content["command"].split(" && "), about["command"]])
        rows = [row for row in content["rows"] if row["ms"] is not None]
        return about | {"command": " && ".join(commands), "versions": versions}, rows
    except (ValueError, KeyError, TypeError) as error:
        raise MetastepError(
            f"{path} is no file of results ({type(error).__name__}: {error}). Choose another --out, or remove it."
        ) from error
