"""What a training run writes and shows. The first rank alone does; on the others every call does nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

from metastep.step.ranks import Ranks
from metastep.train import record as records
from metastep.train.record import Record
from metastep.train.run import Run


@contextmanager
def recording(run: Run, ranks: Ranks, after: int | None, total: int) -> Iterator[Record]:
    """`after`: the step of the checkpoint that the run goes on from, None for a new one."""
    if not ranks.is_first:
        yield Record(run, saved=after)
        return
    with records.recording(run, after, total) as record:
        yield record
