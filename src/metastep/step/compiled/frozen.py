"""What a trace freezes: numbers and texts in closures, globals and attributes, and which tensors are held where.

They are read at every call. If one has changed, the functions are traced again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

_PLAIN = (bool, int, float, complex, str, bytes, NoneType)
_KNOWN = ("torch", "metastep")  # whose globals and attributes do not change
_MOST = 2_000  # objects that are looked at
_LONG = 64  # entries of a list or a dict; longer ones are data


class Frozen:
    """Read the values that a trace of some functions would freeze, as a key.

    Args:
        roots: Functions and objects. What they hold is found once, through closures, globals and attributes.
    """

    def __init__(self, *roots: Any) -> None:
        self._readers: list[Callable[[], Any]] = []
        seen: set[int] = set()
        rest = list(roots)
        while rest and len(seen) < _MOST:
            found = rest.pop()
            if id(found) not in seen and not isinstance(found, (type, ModuleType, Tensor, *_PLAIN)):
                seen.add(id(found))
                rest += self._add(found)

    def __call__(self) -> tuple[Any, ...]:
        """Return what is there now. Equal keys mean that a trace would be the same, as far as can be seen."""
        return tuple([read() for read in self._readers])

    @staticmethod
    def surroundings() -> tuple[Any, ...]:
        """Return what a trace reads of the process."""
        hooks = len(_global_forward_hooks), len(_global_forward_pre_hooks)
        return torch.get_num_threads(), torch.get_default_dtype(), torch.get_float32_matmul_precision(), hooks

    def _add(self, found: Any) -> list[Any]:
        if isinstance(found, nn.Module):
            self._readers += [_reader_of(part) for part in found.modules()]
            return []
        if isinstance(found, FunctionType):
            return [*self._read(found.__closure__ or (), _of_cells), *self._read_globals(found), *_defaults(found)]
        if isinstance(found, partial):
            return [found.func, found.args, found.keywords]
        if isinstance(found, MethodType):
            return [found.__func__, found.__self__]
        if isinstance(found, list | tuple):
            return self._read(found, _of_list)
        if isinstance(found, dict):
            return self._read(found, _of_dict)
        own = getattr(found, "__dict__", {})
        names = list(own)  # those of now: a cached property comes later, and freezes nothing
        return self._read(names, lambda names: (own.get(name) for name in names))

    def _read(self, place: Any, how: Callable[[Any], Iterator[Any]]) -> list[Any]:
        if len(place) == 0 or len(place) > _LONG:
            return []
        self._readers.append(lambda: tuple(map(_looks, how(place))))
        return list(how(place))

    def _read_globals(self, function: FunctionType) -> list[Any]:
        if (function.__module__ or "").partition(".")[0] in _KNOWN:
            return []
        spaces, names = function.__globals__, sorted(_names(function.__code__) & function.__globals__.keys())
        return self._read(names, lambda names: (spaces.get(name) for name in names))


def _of_cells(cells: Sequence[CellType]) -> Iterator[Any]:
    for cell in cells:
        try:
            yield cell.cell_contents
        except ValueError:  # it is empty still
            yield None


def _of_list(values: Sequence[Any]) -> Iterator[Any]:
    yield from values


def _of_dict(values: dict[Any, Any]) -> Iterator[Any]:
    yield from values.values()


def _defaults(function: FunctionType) -> list[Any]:
    return [function.__defaults__, function.__kwdefaults__]


def _names(code: CodeType) -> set[str]:
    within = [_names(part) for part in code.co_consts if isinstance(part, CodeType)]
    return set(code.co_names).union(*within)


def _looks(value: Any) -> Any:
    """A plain value itself; of a tensor or a function, which one it is"""
    return (type(value), value) if isinstance(value, _PLAIN) else _which(value)


def _which(value: Any) -> Any:
    """Which object it is, and of a tensor, where its numbers are: `x.data = …` puts others in their place"""
    return (id(value), value.data_ptr()) if isinstance(value, Tensor) and value.layout is torch.strided else id(value)


def _reader_of(part: nn.Module) -> Callable[[], Any]:
    """Return what reads a module's plain attributes, and which tensors, parts and hooks it has."""
    own = vars(part)
    names = [name for name, value in own.items() if isinstance(value, _PLAIN)]
    kept = [own[kind] for kind in ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")]
    return lambda: (*map(own.get, names), *[tuple(map(_which, each.values())) for each in kept])


# ---- whether two functions are the same


def alike(a: Any, b: Any, depth: int = 6) -> bool:
    """Return whether two losses are the same function: made by the same code from the same things."""
    if a is b:
        return True
    if type(a) is not type(b) or depth == 0:
        return False
    if isinstance(a, FunctionType):
        return a.__code__ is b.__code__ and _all_alike(_held_by(a), _held_by(b), depth)
    if isinstance(a, MethodType):
        return a.__func__ is b.__func__ and alike(a.__self__, b.__self__, depth - 1)
    if isinstance(a, partial):
        return _all_alike([a.func, a.args, a.keywords], [b.func, b.args, b.keywords], depth)
    if isinstance(a, list | tuple):
        return _all_alike(a, b, depth)
    if isinstance(a, dict):
        return a.keys() == b.keys() and _all_alike(list(a.values()), list(b.values()), depth)
    if is_dataclass(a):
        return all(alike(getattr(a, f.name), getattr(b, f.name), depth - 1) for f in fields(a))
    return isinstance(a, bool | int | float | str | bytes) and a == b


def _held_by(function: FunctionType) -> list[Any]:
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [*cells, function.__defaults__, function.__kwdefaults__]


def _all_alike(a: Sequence[Any], b: Sequence[Any], depth: int) -> bool:
    return len(a) == len(b) and all(alike(x, y, depth - 1) for x, y in zip(a, b, strict=True))
