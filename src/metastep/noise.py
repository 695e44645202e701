"""Randomness that can be drawn again: the sweep returns to a window and must see the same noise."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Generators(NamedTuple):
    """The state of PyTorch's random number generators, CPU and GPU"""

    cpu: Tensor
    cuda: list[Tensor]


def generators() -> Generators:
    return Generators(torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])


def set_generators(state: Generators) -> None:
    torch.set_rng_state(state.cpu)
    if state.cuda:
        torch.cuda.set_rng_state_all(state.cuda)


_recording: list[bool] = []


@contextmanager
def recorded() -> Iterator[None]:
    """What runs inside is traced, to be run again as it is"""
    _recording.append(True)
    try:
        yield
    finally:
        _recording.pop()


def is_recorded() -> bool:
    """Whether calls are traced, compiled or captured, where generators cannot be set back, and no number is known"""
    capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    return bool(_recording) or torch.compiler.is_compiling() or capturing


def replayed(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, drawing in every call the random numbers of its first call."""
    first: list[Generators | None] = []  # None: it drew nothing

    def call(*args: Any) -> Any:
        if is_recorded() or first == [None]:
            return function(*args)
        now = generators()
        if first and first[0]:
            set_generators(first[0])
        try:
            return function(*args)
        finally:
            if first:
                set_generators(now)
            else:
                first.append(now if drawn_since(now) else None)

    return call


def drawn_since(before: Generators) -> bool:
    now = generators()
    return not all(map(torch.equal, [now.cpu, *now.cuda], [before.cpu, *before.cuda]))
