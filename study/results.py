"""Where measured numbers go: results/bench/<device>-<what>.json, one file for each run."""

import json
from pathlib import Path
from typing import Any

import torch

from metastep.train.commit import CHANGED
from metastep.train.device import device_for, device_name
from study.bench import results as files

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "results" / "bench"


def write(what: str, command: str, rows: list[dict[str, Any]]) -> Path:
    path = FOLDER / f"{_device()}-{what}.json"
    files.write(path, provenance(command), rows)
    return path


def kept(what: str, command: str) -> list[dict[str, Any]]:
    """What an earlier call wrote, if it was the same in all that is told of it; of code that changed nobody knows"""
    content, now = read_if_there(f"bench/{_device()}-{what}"), provenance(command)
    same = all(content.get(name) == value for name, value in now.items())
    return list(content["rows"]) if same and not now["commit"].endswith(CHANGED) else []


def _device() -> str:
    return "gpu" if torch.cuda.is_available() else "cpu"


def provenance(command: str) -> dict[str, Any]:
    device = device_for("auto")
    about = files.provenance(command, device_name(device), folders=[ROOT / "study"])
    return about | {"threads": torch.get_num_threads()}


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file_of(name).read_text())
    return content


def read_if_there(name: str) -> dict[str, Any]:
    """Without rows where there is no such file"""
    return read(name) if file_of(name).exists() else {"rows": []}


def file_of(name: str) -> Path:
    return ROOT / "results" / f"{name}.json"


def picture_of(name: str) -> Path:
    """Of the file of this name"""
    return ROOT / "docs" / "figures" / f"{name}.svg"
