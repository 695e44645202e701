"""The files of results in this repository: what the study writes, and what its tables read.

A file of `study/bench/results.py` has rows below the provenance that makes them again. Here is where such files are:
results/bench/<device>-<what>.json, one file for each run of an experiment.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from metastep.train.device import CHANGED, device_for, device_name
from study import CODE
from study.bench import results as files
from study.bench.results import Row

if TYPE_CHECKING:
    from study.claims.outcomes import Made

ROOT = CODE.parent
FOLDER = ROOT / "results" / "bench"

# ---- write


def write(what: str, command: str, rows: list[Row]) -> Path:
    """Write the rows of an experiment with their provenance, and return the path."""
    path = FOLDER / f"{_device()}-{what}.json"
    files.write(path, provenance(command), rows)
    return path


def write_each(what: str, command: str, rows: list[Row], more: Iterable[Row]) -> None:
    """Add rows as they come. The file is whole after each: whatever stops the experiment, this much is kept."""
    for row in more:
        rows.append(row)
        print(write(what, command, rows), flush=True)


def kept(what: str, command: str) -> list[Row]:
    """Return the rows of an earlier call of the same command, on the same code and device.

    Code with changes that are not committed may be any code: then there are none.
    """
    content, now = read_if_there(f"bench/{_device()}-{what}"), provenance(command)
    same = all(content.get(name) == value for name, value in now.items())
    return list(content["rows"]) if same and not now["commit"].endswith(CHANGED) else []


def _device() -> str:
    return "gpu" if torch.cuda.is_available() else "cpu"


# ---- where numbers come from


def provenance(command: str) -> dict[str, Any]:
    """Return what someone needs to make numbers of this process again."""
    about = files.provenance(command, device_name(device_for("auto")), folders=[CODE])
    return about | {"threads": torch.get_num_threads()}


def provenance_of_run(command: str, made: "Made") -> dict[str, Any]:
    """Return the same for numbers of a run, which may have been made elsewhere."""
    versions = {"python": made.python, "torch": made.torch}
    return {"command": command, "commit": made.commit, "device": made.device, "versions": versions}


def caption(content: dict[str, Any]) -> str:
    """Return the line above a table: the provenance of its file."""
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    commit, _, changed = content["commit"].partition(",")
    of = commit[:10] + (f" ({changed.strip()})" if changed else "")
    return f"`{content['command']}` at commit {of}, {content['device']}, {versions}\n"


# ---- read


def read(name: str) -> dict[str, Any]:
    """Read a file by its name below results, such as bench/cpu-bench."""
    content: dict[str, Any] = json.loads(file_of(name).read_text())
    return content


def read_if_there(name: str) -> dict[str, Any]:
    """Read a file. One that does not exist has no rows."""
    return read(name) if file_of(name).exists() else {"rows": []}


def file_of(name: str) -> Path:
    """Return the path of a file of results."""
    return ROOT / "results" / f"{name}.json"


def picture_of(name: str) -> Path:
    """Return the path of the picture that is drawn from the file of this name."""
    return ROOT / "docs" / "figures" / f"{name}.svg"
