"""What goes wrong with a run on disk: one message with the file, the reason and the remedy."""

from os import PathLike
from typing import TypeVar

from metastep.errors import MetastepError


class RunError(MetastepError):
    """A run's folder cannot be used as asked."""


class CheckpointError(RunError):
    """A checkpoint cannot be written, or is not one that can be read."""


class ConfigError(RunError):
    """A configuration does not fit its type; the message names the field."""


class LockError(RunError):
    """Another process is writing this run."""


AnyRunError = TypeVar("AnyRunError", bound=RunError)


def problem(error: type[AnyRunError], path: str | PathLike[str], reason: str, remedy: str) -> AnyRunError:
    """An error to raise. The name is quoted: a file's name may hold terminal escapes."""
    return error(f"{str(path)!r}: {reason}. {remedy}.")
