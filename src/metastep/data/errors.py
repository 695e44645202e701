"""Say what is wrong with data, and how far long-running loaders are."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeVar

from metastep.errors import MetastepError


class DataError(MetastepError):
    """Report data that cannot be used: the input, the reason and the remedy."""


def problem(subject: str | Path, reason: str, remedy: str) -> DataError:
    """Return a DataError: which input, why it cannot be used, what to do."""
    return DataError(f"{printable(subject)}: {reason.rstrip('.')}. {remedy.rstrip('.')}.")


def missing(root: Path, what: str, source: str) -> DataError:
    """Return a DataError for a missing data set; `source` says where to get it."""
    remedy = f"Put it there, or name the folder that has it with --data or METASTEP_DATA; to get it: {source}"
    return problem(root, f"does not hold {what}, or only a part of it", remedy)


def printable(text: str | Path) -> str:
    """Return a file's name without terminal escapes or bytes that no terminal can encode."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


Item = TypeVar("Item")
Progress = Callable[[int, int], None]  # (done, total); total is 0 where it is not known

REPORT_EVERY = 100  # items: often enough to look alive, seldom enough to cost nothing


def silent(done: int, total: int) -> None:
    """Report nothing."""
    del done, total


QUIETLY: AbstractContextManager[Progress] = nullcontext(silent)
"""The default where a caller may show progress while the block runs"""


def counted(items: Iterable[Item], total: int, progress: Progress) -> Iterator[Item]:
    """The items themselves; every hundredth that was dealt with is reported, and the last one."""
    done = 0
    for done, item in enumerate(items, start=1):
        yield item
        if done % REPORT_EVERY == 0:
            progress(done, total)
    if done % REPORT_EVERY:
        progress(done, total)
