"""A run is a folder: its configuration, its metrics, its last and its best checkpoint, and a lock for the writer."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from metastep.train import checkpoints
from metastep.train.config import Config
from metastep.train.config_file import AnyConfig, read_config, read_job, write_config
from metastep.train.errors import CheckpointError, RunError, problem
from metastep.train.io import explained, remove_partial_files
from metastep.train.lock import locked
from metastep.train.metrics import Metrics

STATE = "training state"

Which = Literal["last", "best"]


@dataclass(frozen=True)
class Run:
    """Made by `Run.create` or `Run.open`. Reading needs no lock; write inside `with run.lock():`."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, config: Config) -> Self:
        """A new run in a folder that is empty or not there yet."""
        run = cls(folder)
        run._require_vacant()
        with explained(folder, "made"):
            folder.mkdir(parents=True, exist_ok=True)
        with run.lock():
            run._require_vacant()  # again: another process may have been faster
            run.configure(config)
        return run

    @classmethod
    def open(cls, folder: Path) -> Self:
        run = cls(folder)
        if not cls.is_there(folder):
            reason = "holds no run (no config.json)" if os.path.isdir(folder) else "is not there, or no folder"
            raise problem(RunError, folder, reason, "Give the folder of a run")
        read_job(run.config_path)
        return run

    @classmethod
    def is_there(cls, folder: Path) -> bool:
        """Whether the folder holds a run"""
        return os.path.isfile(cls(folder).config_path)

    def _require_vacant(self) -> None:
        if os.path.exists(self.config_path):
            raise problem(RunError, self.folder, "holds a run already", "Resume that one, or choose another folder")
        if not os.path.lexists(self.folder):
            return
        with explained(self.folder, "listed"):  # a file in its place cannot
            foreign = sorted(entry.name for entry in self.folder.iterdir() if not _is_litter(entry))
        if foreign:
            reason = f"holds other files ({foreign[0]!r}{', ...' if foreign[1:] else ''})"
            raise problem(RunError, self.folder, reason, "Choose an empty or a new folder: nothing was changed")

    @property
    def config_path(self) -> Path:
        return self.folder / "config.json"

    @property
    def metrics_path(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def tensorboard_path(self) -> Path:
        return self.folder / "tensorboard"

    @property
    def last(self) -> Path:
        return self.folder / "last.safetensors"

    @property
    def previous(self) -> Path:
        """The last but one, for a disk that damages the last."""
        return self.folder / "previous.safetensors"

    @property
    def best(self) -> Path:
        return self.folder / "best.safetensors"

    @property
    def job(self) -> type[Config]:
        """The class of its configuration."""
        return read_job(self.config_path)

    def config(self, kind: type[AnyConfig]) -> AnyConfig:
        return read_config(self.config_path, kind)

    def configure(self, config: Config) -> None:
        write_config(self.config_path, config)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One writer at a time; what a killed writer left half-written is removed."""
        with locked(self.folder / ".lock"):
            remove_partial_files(self.folder)
            yield

    def metrics(self, after: int | None) -> Metrics:
        """Rows beyond step `after` are dropped: the step of the checkpoint resumed from, None if there is none."""
        return Metrics(self.metrics_path, after, self.tensorboard_path)

    def save(self, tree: Mapping[str, Any], best: Mapping[str, Any] | None = None) -> None:
        """best: the tree of a new best, be it this one or one before it"""
        # The best one first: `last` records that it was reached. Killed in between, a resume reaches it again;
        # the other way round, `best` would stay behind for ever.
        if best is not None:
            checkpoints.save(self.best, best, STATE)
        self._keep_previous()
        checkpoints.save(self.last, tree, STATE)

    def _keep_previous(self) -> None:
        """Under another name too, so that there is a last one at every moment"""
        link = self.folder / f".previous.{os.getpid()}.partial"
        with suppress(OSError):  # before the first checkpoint, or where a file can have one name only
            os.link(self.last, link)
            os.replace(link, self.previous)

    def taken(self, wanted: Which) -> Which:
        """Which checkpoint there is: where there was no validation yet, the last stands for the best"""
        if not self.last.is_file():
            remedy = "Wait for the first, or train on with --resume"
            raise problem(CheckpointError, self.folder, "has no checkpoint yet", remedy)
        return wanted if self.best.is_file() else "last"

    def checkpoint(self, which: Which) -> Path:
        return self.last if which == "last" else self.best

    def load(self, which: Which = "last") -> dict[str, Any]:
        try:
            return checkpoints.load(self.checkpoint(which), STATE)
        except CheckpointError as error:
            if which == "best" or not self.previous.is_file():
                raise
            raise CheckpointError(f"{error} The checkpoint before it is {self.previous.name!r}.") from error


def _is_litter(entry: Path) -> bool:
    """What a `create` that was killed may have left."""
    return entry.name == ".lock" or (entry.name.startswith(".config.json.") and entry.suffix == ".partial")
