"""Randomness that can be drawn again: the sweep returns to a window and must see the same noise."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from metastep.errors import MetastepError


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


class NoiseError(MetastepError, RuntimeError):
    """So that who records a step calls it as it is, as where a recording fails otherwise"""


class _NoNoise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What is recorded draws its numbers in every look at a window anew, so that none may be drawn"""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in function.tags:
            raise NoiseError(
                "a loss or a module draws random numbers, which a recorded sweep cannot draw again. Draw them before "
                "the call and put them into the task, or do not compile."
            )
        return function(*args, **(kwargs or {}))


def replayed(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, drawing in every call the random numbers of its first call."""
    first: list[Generators | None] = []  # None: it drew nothing

    def call(*args: Any) -> Any:
        if is_recorded() and not torch.compiler.is_compiling():  # dynamo knows no such modes
            with _NoNoise():  # type: ignore[no-untyped-call]
                return function(*args)
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

    call.is_replayed = True  # type: ignore[attr-defined]
    return call


def fixed(windows: list[Any]) -> list[Any]:
    """Each window draws its noise once: dropout has one mask, however often the sweep returns to the window.

    A loss that brings its own derivatives draws none; one that is replayed already stays as it is.
    """
    settled = ("gradient_by_hand", "product_by_hand", "is_replayed")
    return [w if any(hasattr(w.loss, n) for n in settled) else w._replace(loss=replayed(w.loss)) for w in windows]


def refused(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """`function`, which is called more than once for one result, and must not draw"""

    def call(*args: Any) -> Any:
        if is_recorded():
            return function(*args)
        before = generators()
        value = function(*args)
        if drawn_since(before):
            raise MetastepError(
                f"{what} draws random numbers, and would draw others when it is differentiated. Draw them before the "
                "call and put them into the task."
            )
        return value

    return call


def drawn_since(before: Generators) -> bool:
    now = generators()
    return not all(map(torch.equal, [now.cpu, *now.cuda], [before.cpu, *before.cuda]))
