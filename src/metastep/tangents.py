"""What torch.no_grad() holds constant has no tangent either: forward mode alone does not look at it."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _NoGradStopsTangents(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch._C._set_grad_enabled:
            torch._C._set_fwd_grad_enabled(args[0])
        return function(*args, **(kwargs or {}))


def held_under_no_grad(loss: Callable[..., Any]) -> Callable[..., Any]:
    """`loss`, whose parts under torch.no_grad() are constants to a jvp, as they are to a gradient"""

    def value(*args: Any) -> Any:
        with _NoGradStopsTangents():
            return loss(*args)

    return value
