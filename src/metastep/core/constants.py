"""What a loss holds constant has no second derivative either, in whichever way it says so.

torch.no_grad() stops gradients, and forward mode alone does not look at it; nor does it at torch.autograd.grad without
create_graph, whose result is a constant. `.data` leaves out the innermost derivative alone, where functions are
differentiated twice; .detach() leaves out all of them.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from metastep.core.derivatives import is_transformed
from metastep.errors import MetastepError

_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]


class Constants(TorchFunctionMode):
    """Around what is to be differentiated twice"""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch._C._set_grad_enabled:
            torch._C._set_fwd_grad_enabled(args[0])
        elif function == _DATA:
            return args[0].detach()
        elif function is torch.autograd.grad and not kwargs["create_graph"]:
            return tuple(found if found is None else found.detach() for found in function(*args, **kwargs))
        elif function is torch.Tensor.detach_:
            raise MetastepError(
                "a module or a loss calls .detach_(), which second derivatives do not see. Write x = x.detach()."
            )
        return function(*args, **(kwargs or {}))


def with_constants(loss: Callable[..., Any]) -> Callable[..., Any]:
    """`loss`, whose constants are so to every derivative"""

    def value(*args: Any) -> Any:
        with Constants() if is_transformed() else nullcontext():
            return loss(*args)

    return value
