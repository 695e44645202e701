"""Operations of PyTorch with recorded numbers, and with tensors, where they take Python numbers only."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from metastep.core.recorded_numbers import Number, UntraceableError, as_tensors
from metastep.core.trees import tree_leaves


def operate(function: Any, args: Any, kwargs: Any) -> Any:
    """Call a function of PyTorch. Its numbers become tensors; where no tensor may stand, its formula is written out."""
    written: Callable[..., Any] = _WRITTEN_OUT.get(getattr(function, "__name__", ""), _plainly)
    return written(function, args, kwargs)


def _plainly(function: Any, args: Any, kwargs: Any) -> Any:
    tensors = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
    if tensors:
        args, kwargs = as_tensors((args, kwargs), tensors[0])
    return function(*args, **kwargs)


def _scaled_sum(function: Any, args: Any, kwargs: Any) -> Any:
    """x + α·y"""
    if not _is_recorded(kwargs.get("alpha")):
        return _plainly(function, args, kwargs)
    x, y = args
    return function(x, y * as_tensors(kwargs["alpha"], x))


def _of_product(name: str, by: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    """x + value · a ∘ b"""

    def written(function: Any, args: Any, kwargs: Any) -> Any:
        if not _is_recorded(kwargs.get("value")):
            return _plainly(function, args, kwargs)
        x, a, b = args
        return getattr(x, name)(as_tensors(kwargs["value"], x) * by(a, b))

    return written


def _interpolated(name: str) -> Callable[..., Any]:
    """x + w (y − x)"""

    def written(function: Any, args: Any, kwargs: Any) -> Any:
        given = dict(zip(("self", "end", "weight"), args, strict=False)) | kwargs
        x, y, weight = given["self"], given["end"], given["weight"]
        if not _is_recorded(weight):
            return _plainly(function, args, kwargs)
        return getattr(x, name)(as_tensors(weight, x) * (y - x))

    return written


def _made(function: Any, args: Any, kwargs: Any) -> Any:
    """A tensor of a number"""
    number, *rest = args
    if not isinstance(number, Number) or rest:
        return _plainly(function, args, kwargs)
    dtype, device = kwargs.get("dtype") or torch.get_default_dtype(), kwargs.get("device") or torch.device("cpu")
    return number.ledger.tensor(number, torch.float64, torch.device(device)).to(dtype)


def _written_where(function: Any, args: Any, kwargs: Any) -> Any:
    """x[mask] = a number: vmap knows no index of a size that depends on values"""
    x, mask, value = args
    if not (isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape == x.shape):
        return _plainly(function, args, kwargs)
    value = as_tensors(value, x)
    if isinstance(value, Tensor) and value.dim() > 0:
        raise UntraceableError("it writes a tensor to where a mask is true")
    return x.copy_(torch.where(mask, value, x))


def _clamped(function: Any, args: Any, kwargs: Any) -> Any:
    given = dict(zip(("self", "min", "max"), args, strict=False)) | kwargs
    x, low, high = given["self"], given.get("min"), given.get("max")
    if not (_is_recorded(low) or _is_recorded(high)):
        return _plainly(function, args, kwargs)
    y = x if low is None else torch.maximum(x, _tensor(low, x))
    y = y if high is None else torch.minimum(y, _tensor(high, x))
    return x.copy_(y) if function.__name__.endswith("_") else y


def _tensor(limit: Any, like: Tensor) -> Tensor:
    limit = as_tensors(limit, like)
    return limit if isinstance(limit, Tensor) else torch.full_like(like, limit)


def _is_recorded(x: Any) -> bool:
    return isinstance(x, Number | Tensor)


_WRITTEN_OUT: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("add", "add_", "sub", "sub_"), _scaled_sum),
    "addcmul": _of_product("add", torch.mul), "addcmul_": _of_product("add_", torch.mul),
    "addcdiv": _of_product("add", torch.div), "addcdiv_": _of_product("add_", torch.div),
    "lerp": _interpolated("add"), "lerp_": _interpolated("add_"),
    **dict.fromkeys(("tensor", "as_tensor", "scalar_tensor"), _made),
    "__setitem__": _written_where, "clamp": _clamped, "clamp_": _clamped,
}  # fmt: skip
