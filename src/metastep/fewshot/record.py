"""What a training run writes and shows. The first rank alone does; on the others every call does nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

from metastep.fewshot.distributed import Ranks
from metastep.runs import Run
from metastep.runs import record as records
from metastep.runs.record import Record


@contextmanager
def recording(run: Run, ranks: Ranks, after: int | None, total: int) -> Iterator[Record]:
    """`after`: the step of the checkpoint that the run goes on from, None for a new one."""
    if not ranks.is_first:
        yield Record(run, saved=after)
        return
    with records.recording(run, after, total) as record:
        yield record
