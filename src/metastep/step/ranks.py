"""Tasks over ranks: `torchrun` starts them, each takes its share of the tasks, one all-reduce a meta-step joins them.

Every rank holds the same parameters and makes the same step with them; the first one alone writes.
"""

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from metastep.core.trees import Tree, from_vector, to_vector, tree_flatten, tree_unflatten
from metastep.errors import MetastepError, how_many

TIMEOUT = timedelta(minutes=5)  # a rank that is silent for so long is taken for dead

T = TypeVar("T")


class RankError(MetastepError):
    """Report that another rank has failed, so that this one cannot continue."""


@dataclass(frozen=True)
class Ranks:
    """Which rank this process is, and of how many; one process alone is rank 0 of 1."""

    rank: int = 0
    count: int = 1
    local: int = 0

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, tasks: int) -> tuple[int, int]:
        """Return (first, number) of this rank's tasks."""
        if tasks < self.count:
            raise MetastepError(
                f"{how_many(tasks, 'task')} for {self.count} ranks: each needs at least one. Start fewer ranks."
            )
        ends = [tasks * rank // self.count for rank in (self.rank, self.rank + 1)]
        return ends[0], ends[1] - ends[0]

    def total(self, tree: Tree, share: float = 1.0) -> Tree:
        """Return the sum of a tree of tensors over ranks, each weighed by its share, in one message."""
        if self.count == 1:
            return tree
        flat = share * to_vector(tree)
        with _explained():
            dist.all_reduce(flat)
        return from_vector(flat, tree)

    def mean(self, tree: Tree, weight: float) -> Tree:
        """Return the weighted mean of a tree of tensors over ranks, in one message for each precision."""
        if self.count == 1:
            return tree
        leaves, spec = tree_flatten(tree)
        found: list[Tensor | None] = [None] * len(leaves)
        for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):  # in one order on all ranks
            places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
            parts = [torch.view_as_real(leaves[i]) if dtype.is_complex else leaves[i] for i in places]
            message = weight * to_vector([*parts, parts[0].new_ones(1)])
            with _explained():
                dist.all_reduce(message)
            whole = from_vector(message[:-1] / message[-1], parts)
            for i, part in zip(places, whole, strict=True):
                found[i] = torch.view_as_complex(part) if dtype.is_complex else part
        return tree_unflatten(found, spec)

    def alike(self, leaves: Sequence[Tensor]) -> None:
        """Give every rank the tensors of the first one."""
        for leaf in leaves if self.count > 1 else []:
            with _explained(), torch.no_grad():
                dist.broadcast(leaf.data, src=0)

    def from_first(self, make: Callable[[], T]) -> T:
        """Return on every rank what `make` gives on the first, or raise its error there."""
        if self.count == 1:
            return make()
        box: list[Any] = [None, None]
        if self.is_first:
            try:
                box[0] = make()
            except MetastepError as error:
                box[1] = error
        with _explained():
            dist.broadcast_object_list(box, src=0)
        if box[1] is not None:
            _meet()
            raise box[1]
        made: T = box[0]
        return made


ALONE = Ranks()


def current_ranks(device: torch.device) -> Ranks:
    """The ranks that torchrun started, which are connected if nobody has done so; or this process alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if not dist.is_available() or (count == 1 and not dist.is_initialized()):
        return ALONE
    if not dist.is_initialized():
        _connect(device)
    return Ranks(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))


def _connect(device: torch.device) -> None:
    """Connect the processes that torchrun started, until this one ends.

    Gloo's threads abort a process if they outlive Python. They end with the group, but torch._dynamo keeps the group
    that it finds when it is imported. An optimizer imports it, so connect after there is one: `MetaStep` does.
    """
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    atexit.register(_disconnect)


def _disconnect() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def started_ranks(use_gpu: bool, timeout: timedelta = TIMEOUT) -> Iterator[Ranks]:
    """Return the ranks that `torchrun` started, or this process alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield ALONE
        return
    ranks = Ranks(int(os.environ["RANK"]), count, int(os.environ["LOCAL_RANK"]))
    if use_gpu:
        torch.cuda.set_device(ranks.local)
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # a dead rank is an exception, not an abort
    with _explained():
        dist.init_process_group("nccl" if use_gpu else "gloo", timeout=timeout)
    try:
        yield ranks
        _meet()
    finally:
        dist.destroy_process_group()


def run_rank(main: Callable[[], Any]) -> None:
    """Run main() in the process of a rank, then end the process at once with main's status.

    In Python's shutdown gloo's threads now and then abort a rank that is through: torchrun would call that a failure.
    """
    status = 0
    try:
        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _meet() -> None:
    """Wait for all ranks. One that leaves while another still listens to it aborts in gloo's threads."""
    with _explained():
        dist.barrier()


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # dist.DistError among them
        said = str(error).partition("] ")[2] or str(error)  # gloo begins with the place in its source
        reason = said.splitlines()[0].partition(". ")[0] if said.strip() else type(error).__name__
        raise RankError(
            f"another rank has ended, or was silent for too long ({reason}). This one ends too; the last checkpoint is "
            "whole: start all ranks again with --resume."
        ) from error
