"""A meta-gradient is computed apart from what is around the call: one thread at a time, without a trace or hooks."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import RLock
from typing import ParamSpec, TypeVar

import torch
from torch._C import _autograd

P = ParamSpec("P")
T = TypeVar("T")

_turn = RLock()


def apart(function: Callable[P, T]) -> Callable[P, T]:
    """Let one thread at a time run the function, without the caller's torch.compile and saved-tensor hooks.

    Another thread would see φ in the place of the module's parameters, and draw from the same generators. A trace would
    leave the guards out. Hooks, as of a torch.utils.checkpoint around the call, are for what the caller's graph saves,
    and the graphs of the inner loop are none of it.
    """

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        run = torch.compiler.disable(alone) if "torch._dynamo" in sys.modules else alone  # type: ignore[no-untyped-call]
        return run(*args, **options)

    def alone(*args: P.args, **options: P.kwargs) -> T:
        with _turn, _without_hooks():
            return function(*args, **options)

    return call


@contextmanager
def _without_hooks() -> Iterator[None]:
    hooks = []
    while (top := _autograd._top_saved_tensors_default_hooks(False)) is not None:
        hooks.append(top)
        _autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            _autograd._push_saved_tensors_default_hooks(pack, unpack)
