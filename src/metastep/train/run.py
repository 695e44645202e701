"""A run is a folder: its configuration, its metrics, its checkpoints, and a lock for the one who writes it.

The lock is the system's own: it is free when its holder dies, however it dies.
"""

import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from metastep.errors import MetastepError
from metastep.train import checkpoints
from metastep.train.config import JOBS, Config
from metastep.train.io import (
    CheckpointError,
    ConfigError,
    LockError,
    RunError,
    explained,
    itself,
    problem,
    read_file,
    remove_partial_files,
    replace_file,
)
from metastep.train.validated import from_plain, to_plain

FORMAT = "metastep run"
VERSION = 3

AnyConfig = TypeVar("AnyConfig", bound=Config)


def write_config(path: Path, config: Config) -> None:
    """Write a configuration; one that could not be read back as the same is refused now."""
    plain = to_plain(config)
    if from_plain(type(config), plain) != config:
        raise problem(ConfigError, path, "this configuration is not the same when read back", "Use plain fields")
    content = {"format": FORMAT, "version": VERSION, "job": config.job, "config": plain}
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    replace_file(path, text.encode(errors="surrogatepass"), ConfigError)  # paths may have bytes that are no text


def read_config(path: Path, kind: type[AnyConfig]) -> AnyConfig:
    """Return the configuration of a run of this kind."""
    content = _content(path)
    found: type[Config] = JOBS[content["job"]]
    if not issubclass(found, kind):
        reason = f"is {found.words}, not {kind.words}"
        raise problem(ConfigError, path.parent, reason, "Give a run of the other kind")
    try:
        return from_plain(found, content["config"])
    except MetastepError as cause:
        raise ConfigError(f"{str(path)!r}: {cause}") from cause


def _content(path: Path) -> dict[str, Any]:
    data = read_file(path, ConfigError)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as cause:
        raise problem(ConfigError, path, f"is no JSON ({cause})", "Repair it, or restore a copy") from cause
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise problem(ConfigError, path, "was not written by metastep", "Give the folder of a metastep run")
    if content.get("version") != VERSION:
        reason = f"has format version {content.get('version')}, and this metastep reads version {VERSION}"
        raise problem(ConfigError, path, reason, "Use the version of metastep that wrote it, or train it again")
    if missing := {"job", "config"} - content.keys():
        raise problem(ConfigError, path, f"lacks {', '.join(sorted(missing))}", "Restore a copy")
    if content["job"] not in JOBS:
        raise problem(ConfigError, path, f"job = {content['job']!r} is none of {', '.join(JOBS)}", "Restore a copy")
    return content


STATE = "training state"

Which = Literal["last", "best"]


class Run:
    """Made by `Run.create` or `Run.open`. Reading needs no lock; write inside `with run.lock():`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config_path, self.metrics_path = folder / "config.json", folder / "metrics.jsonl"
        self.tensorboard_path = folder / "tensorboard"
        self.last, self.best = folder / "last.safetensors", folder / "best.safetensors"
        self.previous = folder / "previous.safetensors"  # the last but one, for a disk that damages the last

    @classmethod
    def create(cls, folder: Path, config: Config) -> Self:
        """A new run in a folder that is empty or not there yet."""
        run = cls(folder)
        run._require_vacant()
        with explained(folder, "made"):
            folder.mkdir(parents=True, exist_ok=True)
        with run.lock():
            run._require_vacant()  # again: another process may have been faster
            write_config(run.config_path, config)
        return run

    @classmethod
    def open(cls, folder: Path) -> Self:
        run = cls(folder)
        if not cls.is_there(folder):
            reason = "holds no run (no config.json)" if os.path.isdir(folder) else "is not there, or no folder"
            raise problem(RunError, folder, reason, "Give the folder of a run")
        _content(run.config_path)  # says so if it is none of ours
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

    def config(self, kind: type[AnyConfig]) -> AnyConfig:
        return read_config(self.config_path, kind)

    def reconfigure(self, config: Config) -> None:
        """Continue the same run with another configuration."""
        if config != self.config(type(config)):
            with self.lock():
                write_config(self.config_path, config)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One writer at a time; what a killed writer left half-written is removed."""
        with locked(self.folder / ".lock"):
            remove_partial_files(self.folder)
            yield

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
    """Return whether a `create` that was killed may have left it."""
    return entry.name == ".lock" or (entry.name.startswith(".config.json.") and entry.suffix == ".partial")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; refuse if any process holds it, this one included.

    The file stays when the lock is released: removing it could take it from under a process that has just opened it.
    """
    with explained(path, "locked", LockError):
        descriptor = itself(str(path), os.O_RDWR | os.O_CREAT)
    try:
        with explained(path, "locked", LockError):
            _acquire(descriptor, path)
            _sign(descriptor)
        yield
    finally:
        os.close(descriptor)  # and with it the lock


def _acquire(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as cause:
        reason = f"{_holder(descriptor)} is writing this run"
        raise problem(LockError, path, reason, "Wait until it ends, stop it, or choose another folder") from cause


def _sign(descriptor: int) -> None:
    """The name is for people alone: the lock is the kernel's, so a name left by a dead process locks nothing."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)


def _holder(descriptor: int) -> str:
    try:
        signed = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {signed['pid']} on {signed['host']}"
    except (ValueError, KeyError, TypeError):  # it has the lock, and has not signed yet
        return "another process"


@dataclass
class Trained:
    """How far a run is: with the state of its job, all that a checkpoint keeps."""

    iterations: int = 0
    seconds: float = 0.0
    """Of training, without validation and without checkpoints"""
    best: float | None = None
    """The best validation accuracy"""
    best_at: int = 0
    """After how many iterations it was reached first"""
    test: float | None = None
    """The accuracy on test pictures then, where a run tests itself"""
    epoch: int = 1
    """Iterations of an epoch"""
    total: int = 0
    """Iterations of the whole run; a checkpoint does not keep it, since a run may be made longer"""
    source: "Trained | None" = None
    """How far its source is, for a run that was stopped before its own turn"""

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.iterations == self.total > 0

    @property
    def kept(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it."""
        return {name: value for name, value in asdict(self).items() if name not in ("total", "source")}

    @property
    def length(self) -> int:
        """Epochs that are done, or iterations where there are no epochs."""
        return self.iterations // self.epoch

    @property
    def best_epoch(self) -> int:
        """The epoch, or iteration, after which validation was best first."""
        return self.best_at // self.epoch

    def improves(self, row: Mapping[str, float], done: int) -> bool:
        """Remember a validation if it is the best so far. The first of equals counts."""
        if self.best is not None and row["validation_accuracy"] <= self.best:
            return False
        self.best, self.best_at, self.test = row["validation_accuracy"], done, row.get("test_accuracy")
        return True


def how_far(run: Run) -> Trained:
    """Return how far the last checkpoint of a run is."""
    return trained_of(run.load(), run.last) if run.last.is_file() else Trained()


def trained_of(tree: Mapping[str, Any], path: Path) -> Trained:
    """Return how far a checkpoint is that was read from `path`."""
    try:
        return Trained(**tree["trained"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{str(path)!r}: is no checkpoint of training ({error}).") from error
