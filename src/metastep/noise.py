"""Randomness that can be drawn again: the sweep returns to a window and must see the same noise."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

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


class _NoNoise(TorchFunctionMode):
    """What is recorded draws its numbers in every look at a window anew, so that none may be drawn"""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _DRAW or (function in _DRAW_IN_TRAINING and _trains(*args, **(kwargs or {}))):
            raise NoiseError("a loss or a module draws random numbers, which a recorded sweep cannot draw again")
        return function(*args, **(kwargs or {}))


_DRAWN = ("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "random", "uniform")
_DRAW = frozenset(
    [getattr(torch.Tensor, f"{name}_") for name in _DRAWN]
    + [getattr(torch, name) for name in ("rand", "randn", "randint", "rand_like", "randn_like", "randint_like")]
    + [torch.bernoulli, torch.multinomial, torch.normal, torch.poisson, torch.Tensor.multinomial, F.gumbel_softmax]
)
_DRAW_IN_TRAINING = frozenset(
    [F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout]
)


def _trains(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> bool:
    return training and p > 0


def replayed(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, drawing in every call the random numbers of its first call."""
    first: list[Generators | None] = []  # None: it drew nothing

    def call(*args: Any) -> Any:
        if is_recorded():
            with nullcontext() if torch.compiler.is_compiling() else _NoNoise():  # dynamo does not see what it asks
                return function(*args)
        if first == [None]:
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


def fixed(windows: list[Any]) -> list[Any]:
    """Each window draws its noise once: dropout has one mask, however often the sweep returns to the window.

    A loss that brings its own derivatives draws none.
    """
    plain = (not any(hasattr(w.loss, name) for name in ("gradient_by_hand", "product_by_hand")) for w in windows)
    return [w._replace(loss=replayed(w.loss)) if is_plain else w for w, is_plain in zip(windows, plain, strict=True)]


def refused(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """`function`, which is called more than once for one result, and must not draw"""

    def call(*args: Any) -> Any:
        if is_recorded():
            return function(*args)
        before = generators()
        value = function(*args)
        if drawn_since(before):
            raise MetastepError(
                f"{what} draws random numbers, and would draw others when it is differentiated. Draw them beforehand, "
                "and put them into the task."
            )
        return value

    return call


def drawn_since(before: Generators) -> bool:
    now = generators()
    return not all(map(torch.equal, [now.cpu, *now.cuda], [before.cpu, *before.cuda]))
