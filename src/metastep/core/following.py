"""Run an optimizer's own code with counts of steps as recorded numbers, and with gradients that are given."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from metastep.core.recorded_numbers import Number, UntraceableError
from metastep.core.recorded_operations import operate
from metastep.core.trees import tree_map


class CountedSlots(dict[str, Any]):
    """An optimizer's state of one parameter, whose "step" is a number that the trace records."""

    def __init__(self, count: Number, following: "Following") -> None:
        super().__init__()
        self._count, self._following = count, following

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "step" and name not in self:
            value = self._following.counted(value, self._count)
        super().__setitem__(name, value)


class Following(TorchFunctionMode):
    """Run an optimizer's operations with numbers as tensors, and with gradients that are given."""

    def __init__(self, is_trusted: bool) -> None:
        super().__init__()
        self.gradients: dict[int, Tensor | None] = {}
        self._is_trusted = is_trusted
        self._counts: dict[int, tuple[Tensor, Number]] = {}
        self._items: dict[int, Tensor] = {}

    def counted(self, value: Any, count: Number) -> Any:
        """Let a tensor stand for a count of steps."""
        if not isinstance(value, Tensor):
            return count
        self._counts[id(value)] = value, count
        return value

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first: Any = args[0] if args else None
        kwargs = kwargs or {}
        if function == _GRAD:
            return self.gradients.get(id(first))
        if id(first) in self._counts and function in (Tensor.add_, Tensor.__iadd__):
            self._counts[id(first)] = first, self._counts[id(first)][1] + args[1]
            return first
        if function is Tensor.item:
            return self._counts[id(first)][1] if id(first) in self._counts else self._item(first)
        if self._is_trusted and id(first) in self._items and function in _EQUALITY:
            return _EQUALITY[function]  # ASGD asks whether a weight is 1, where both ways give the same
        if function in _OUT_OF_TENSORS:
            raise UntraceableError("it decides by the values of tensors, or takes them out as Python numbers")
        args, kwargs = tree_map(self._number, (args, kwargs))
        return operate(function, args, kwargs)

    def _item(self, x: Tensor) -> Tensor:
        item = x.to(torch.float64)
        self._items[id(item)] = item
        return item

    def _number(self, x: Any) -> Any:
        return self._counts[id(x)][1] if id(x) in self._counts else x


_OUT_OF_TENSORS = {
    Tensor.__bool__, Tensor.__float__, Tensor.__int__, Tensor.__index__, Tensor.tolist, Tensor.numpy, Tensor.nonzero,
    Tensor.__contains__, torch.equal, torch.allclose, torch.nonzero,
}  # fmt: skip
_GRAD = vars(torch._C.TensorBase)["grad"].__get__
_EQUALITY = {Tensor.__eq__: False, Tensor.__ne__: True, Tensor.eq: False, Tensor.ne: True}


class States(defaultdict[Tensor, CountedSlots]):
    """An optimizer's state: of every parameter that it has not seen, fresh slots."""

    def __init__(self, fresh: Callable[[Tensor], CountedSlots]) -> None:
        super().__init__()
        self._fresh = fresh

    def __missing__(self, parameter: Tensor) -> CountedSlots:
        self[parameter] = self._fresh(parameter)
        return self[parameter]
