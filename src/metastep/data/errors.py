"""The one exception of this package, and the one shape of its messages."""

from pathlib import Path

from metastep.errors import MetastepError


class DataError(MetastepError):
    """Data that cannot be used: the message names the input, the reason and the remedy."""


def problem(subject: str | Path, reason: str, remedy: str) -> DataError:
    """A DataError to raise: which input, why it cannot be used, what to do about it."""
    return DataError(f"{printable(subject)}: {reason.rstrip('.')}. {remedy.rstrip('.')}.")


def missing(root: Path, what: str, source: str) -> DataError:
    """A DataError to raise where a data directory lacks a data set; `source` says where to get it."""
    remedy = f"Put it there, or name the folder that has it with --data or METASTEP_DATA; to get it: {source}"
    return problem(root, f"does not hold {what}, or only a part of it", remedy)


def printable(text: str | Path) -> str:
    """A file's name is not trusted: it may hold terminal escapes, or bytes that no terminal can encode."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
