"""What a finished run found, as far as a claim needs it; and where it was made, in a file next to the run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from metastep.train.config import Config, FewShot, Transfer
from metastep.train.device import device_for, environment
from metastep.train.evaluate import OnEpisodes
from metastep.train.io import RunError, problem, read_file, replace_file
from metastep.train.record import read_metrics
from metastep.train.run import Run, how_far
from metastep.train.schema import Device
from metastep.train.validated import checked, from_plain, to_plain

MADE, BESIDE = "made.json", "beside.txt"
JOINED = ("device", "torch", "python", "commit")


class Position(NamedTuple):
    """How far a run is"""

    done: int
    total: int
    unit: str

    @property
    def finished(self) -> bool:
        return self.done >= self.total


def position(folder: Path) -> Position:
    """Return how far the run in a folder is."""
    run = Run.open(folder)
    config = run.config(Config)
    return Position(how_far(run).length, config.length, config.unit)


@checked(frozen=True)
class Made:
    """Where and by what a run was made; of one that went on elsewhere, one after the other"""

    device: str
    python: str
    torch: str
    commit: str
    data: str


@checked(frozen=True)
class Outcome:
    preset: str
    seed: int
    accuracy: float
    """On test, in percent"""
    iterations: int
    full: int
    """Iterations of the preset"""
    seconds: float
    """Of training"""
    precision: str
    made: Made
    config: FewShot | Transfer
    """What it was trained and tested by"""
    checkpoint: str = ""
    """Of a few-shot run, which one was tested"""
    evaluation: OnEpisodes | None = None
    """Of a few-shot learner, with the accuracy of each episode"""
    beside: int = 0
    """The most other runs that shared the device while it was trained"""
    unturned: OnEpisodes | None = None
    """On classes as they are, where they are turned to judge it"""
    gradient_differences: tuple[tuple[float, float], ...] = ()
    """(epoch, ‖∇L(φ₁) − ∇L(φ₀)‖ / ‖∇L(φ₁)‖) of the transfer loss, as far as the run looked"""


def made_here(data: str, device: Device) -> Made:
    return Made(**environment(device_for(device)), data=data)


def write_made(folder: Path, made: Made) -> None:
    replace_file(folder / MADE, (json.dumps(to_plain(made), indent=1) + "\n").encode())


def read_made(folder: Path) -> Made:
    path = folder / MADE
    try:
        made = from_plain(Made, json.loads(read_file(path)))
    except ValueError as error:
        raise problem(RunError, path, f"does not say where the run was made ({error})", "Remove it") from error
    parts = [row for row in read_metrics(Run(folder).metrics_path) if row["kind"] == "environment"]
    told = {name: dict.fromkeys(row[name] for row in parts if name in row) for name in JOINED}
    return replace(made, **{name: ", then ".join(each) for name, each in told.items() if each})


def remember_beside(folder: Path, others: int) -> None:
    """Keep how many other runs shared the device, of a run that continues the most"""
    if others > read_beside(folder):
        replace_file(folder / BESIDE, f"{others}\n".encode())


def read_beside(folder: Path) -> int:
    path = folder / BESIDE
    return int(read_file(path)) if path.is_file() else 0
