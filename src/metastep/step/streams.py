"""CUDA streams for work that nothing waits for yet. On a CPU the work is done at once.

Keep what such work reads, and do not touch what it writes, until `wait_for`. In a captured step it becomes a branch of
the graph.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch


@contextmanager
def aside(device: torch.device, name: str) -> Iterator[None]:
    """Run the block on a stream of this name, after all that was queued on the current one."""
    if device.type != "cuda":
        yield
        return
    side = _stream(device, name)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield


def wait_for(device: torch.device, name: str) -> None:
    """Let the current stream wait for the stream of this name."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).wait_stream(_stream(device, name))


@cache
def _stream(device: torch.device, name: str) -> torch.cuda.Stream:
    del name  # each has its own
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
