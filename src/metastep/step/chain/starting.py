"""Let kernels start before the previous kernel has ended, by options for Triton's launches."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

HOPPER = (9, 0)  # the first that supports it
_apart = False


@contextmanager
def one_after_the_other() -> Iterator[None]:
    """Turn early starts off for a profiler, which would count the waiting of an early kernel as work."""
    global _apart
    before, _apart = _apart, True
    try:
        yield
    finally:
        _apart = before


def start() -> dict[str, bool]:
    early = torch.cuda.is_available() and not _apart and _can_start_early(torch.cuda.current_device())
    return {"CHAINED": True, "launch_pdl": True} if early else {"CHAINED": False}


@cache
def _can_start_early(device: int) -> bool:
    return torch.cuda.get_device_capability(device) >= HOPPER
