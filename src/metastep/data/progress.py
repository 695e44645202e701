"""How long-running loaders report how far they are."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

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
