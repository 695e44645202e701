"""Where measured numbers go: results/bench/<device>-<what>.json, one file for each run."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "results" / "bench"


def write(what: str, command: str, rows: list[dict[str, Any]]) -> Path:
    path = FOLDER / f"{'gpu' if torch.cuda.is_available() else 'cpu'}-{what}.json"
    content = provenance(command) | {"rows": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def provenance(command: str) -> dict[str, Any]:
    """What someone needs to make the numbers again"""
    return {
        "command": command,
        "commit": commit(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else processor(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "threads": torch.get_num_threads(),
    }


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / "results" / f"{name}.json").read_text())
    return content


def commit() -> str:
    """The commit that was measured; METASTEP_COMMIT where there is no repository"""
    if given := os.environ.get("METASTEP_COMMIT"):
        return given
    run = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout.strip() or "unknown"


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{model}, {os.cpu_count()} cores"
