"""Descriptions are values: equal by their parts, hashable, copied with all they hold, pickled if their parts are."""

import pickle
from copy import deepcopy
from dataclasses import fields, is_dataclass
from io import BytesIO
from typing import Any, Self

import torch
from torch import Tensor

from metastep.core.trees import tree_flatten
from metastep.errors import MetastepError, first_line


class Value:
    """Base of frozen dataclasses whose fields may be modules, functions and trees of tensors."""

    @property
    def parts(self) -> dict[str, Any]:
        """The fields by name, without what was computed of them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _same(tuple(self.parts.values()), tuple(other.parts.values()))

    def __hash__(self) -> int:
        plain = (bool, int, float, str, type(None))
        return hash((type(self), *(part if isinstance(part, plain) else type(part) for part in self.parts.values())))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = memo[id(self)] = _empty(type(self))  # known before its parts are: a module may hold what describes it
        vars(made).update(deepcopy(self.parts, memo))
        return made  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        for name, part in self.parts.items():
            _require_pickles(part, f"the {name} of this {type(self).__name__}")
        return _empty, (type(self),), self.parts


def _empty(kind: type) -> Any:
    """An instance whose fields are not set: `__init__` would look at them."""
    return object.__new__(kind)


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return type(a) is type(b) and (a.dtype, a.device) == (b.dtype, b.device) and torch.equal(a, b)
    if is_dataclass(a) and not isinstance(a, type):
        return type(a) is type(b) and all(_same(getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    (ours, spec), (theirs, other_spec) = tree_flatten(a), tree_flatten(b)
    if len(ours) == 1 and ours[0] is a:  # no tree, but a leaf
        return bool(a == b)
    return spec == other_spec and all(map(_same, ours, theirs))


class _Structure(pickle.Pickler):
    """Everything but numbers; a value that is met again inside of its parts has been looked at."""

    def persistent_id(self, part: Any) -> str | None:
        return "skipped" if isinstance(part, Tensor | Value) else None


def _require_pickles(part: Any, what: str) -> None:
    try:
        _Structure(BytesIO()).dump(part)
    except Exception as error:  # pickle raises whatever a part's own code does
        raise MetastepError(
            f"{what} cannot be pickled ({first_line(error)}). Define its functions and classes at the top level of a "
            "module instead of as a lambda or inside a function."
        ) from None
