"""All that a computation prepared for a module depends on, besides its tensors: read at every call, so read fast."""

from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

_PLAIN = (bool, int, float, str, tuple, NoneType, FunctionType, BuiltinFunctionType)
HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"


class Fingerprint:
    """Read the parts of a module, their plain attributes, whether they have hooks, and what their parameters are."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._find()

    def __call__(self) -> Any:
        """Return what is there now. Equal values mean that what was prepared still fits."""
        if self._structure() != self._known:
            self._find()
        first = next(self._module.parameters())
        kind = first.device, first.dtype, torch.get_float32_matmul_precision()
        hooked = bool(_global_forward_hooks or _global_forward_pre_hooks)
        return self._parts, kind, hooked, tuple([read() for read in self._readers])

    def _find(self) -> None:
        self._parts = tuple(self._module.modules())
        self._readers = [_reader_of(part) for part in self._parts]
        self._known = self._structure()

    def _structure(self) -> list[Any]:
        return [(len(vars(part)), *part._modules.values()) for part in self._parts]


def _reader_of(part: nn.Module) -> Callable[[], Any]:
    own, parameters = vars(part), part._parameters.values()
    names = ["forward", *(name for name, value in own.items() if type(value) in _PLAIN)]  # it may be any callable

    def read() -> Any:
        learned = [p is not None and p.requires_grad for p in parameters]
        return type(part), *map(own.get, names), any(map(own.get, HOOKS)), *learned

    return read
