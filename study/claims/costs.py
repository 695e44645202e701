"""Files of benchmarks, as claims about time and memory read them: ratios within one file, one run on one device."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from metastep.errors import MetastepError
from metastep.train.io import read_file
from study.bench.results import Row
from study.claims.claims import Finding, Verdict

OURS = "metastep"
MARGIN = 0.05  # of a ratio


def gpu_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: (path.name.startswith("cpu"), path.name))


def read_rows(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """Rows of ours that were measured, and what is said about all of them"""
    try:
        content = json.loads(read_file(path))
        rows = content.pop("rows")
        return [row for row in rows if row.get("implementation") == OURS and row.get("ms") is not None], content
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise MetastepError(
            f"{str(path)!r}: is no file of a benchmark ({error!r}). Measure again, or move it."
        ) from error


def about(path: Path, content: dict[str, Any], data: str, more: Path | None = None) -> dict[str, Any]:
    """The fields of a claim that a benchmark answers, which is in one file, or in `more` too"""
    kept = {name: content[name] for name in ("command", "commit", "device", "versions")}
    return kept | {"data": f"{data}; results/bench/{path.name}" + (f", {more.name}" if more else "")}


def absent(what: str) -> Finding:
    return Finding("not run", note=f"no file of results/bench has {what} yet.")


def saving_verdict(saving: float, paper: float) -> Verdict:
    if saving < paper - MARGIN:
        return "short"
    return "better" if saving > paper + MARGIN else "reproduced"
