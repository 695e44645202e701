"""Work that nothing waits for yet, aside from what a GPU is doing; elsewhere it is just done.

What such work reads must be kept, and what it writes left alone, until somebody waits for it. In a captured step it
becomes a branch of the graph.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch


@contextmanager
def aside(device: torch.device, name: str) -> Iterator[None]:
    """On a stream of this name, after all that was asked for on the current one"""
    if device.type != "cuda":
        yield
        return
    side = _stream(device, name)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield


def wait_for(device: torch.device, name: str) -> None:
    """What follows on the current stream waits for the stream of this name"""
    if device.type == "cuda":
        torch.cuda.current_stream(device).wait_stream(_stream(device, name))


@cache
def _stream(device: torch.device, name: str) -> torch.cuda.Stream:
    del name  # each has its own
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
