"""What a module holds while it is called: other tensors in the place of its own, and afterwards what it held before.

A call may change a module: it counts, fills caches, moves buffers. The sweep calls it again and must find it as it was.
So a call lends the module tensors, and what it holds by attributes, dicts and lists is put back afterwards.
"""

from collections import deque
from operator import is_
from typing import Any, NamedTuple

from torch import Tensor, nn

from metastep.errors import MetastepError

_LARGE = 1000  # entries: a larger container is put back, but not searched for tensors


class Slot(NamedTuple):
    """A place that holds a tensor, or a tuple with tensors."""

    container: Any
    key: Any
    value: Any


class Inventory:
    """All that a module holds, as it is now, by attributes and by containers in them."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parts = dict(module.named_modules())
        self.slots: list[Slot] = []
        self._dicts: list[tuple[dict[Any, Any], list[Any], list[Any]]] = []  # with keys and values
        self._others: list[tuple[Any, list[Any]]] = []  # lists, sets, deques, with what is in them
        seen: set[int] = set()
        for part in self.parts.values():
            self._take(vars(part), seen)

    def _take(self, held: Any, seen: set[int]) -> None:
        if id(held) in seen:
            return
        seen.add(id(held))
        if isinstance(held, dict):
            keys, values = list(held), list(held.values())
            self._dicts.append((held, keys, values))
        else:
            keys, values = range(len(held)), list(held)  # type: ignore[assignment]
            if not isinstance(held, tuple):
                self._others.append((held, values))
        if len(values) > _LARGE:
            return
        for key, value in zip(keys, values, strict=True):
            if isinstance(value, Tensor) or (isinstance(value, tuple) and _tensors_in(value)):
                if isinstance(held, dict | list):
                    self.slots.append(Slot(held, key, value))
            elif isinstance(value, dict | list | set | deque | tuple):
                self._take(value, seen)

    def others(self) -> list[Tensor]:
        """Return the tensors that are neither parameters nor buffers."""
        known = {id(x) for part in self.parts.values() for x in (*part._parameters.values(), *part._buffers.values())}
        return [x for slot in self.slots for x in _tensors_in(slot.value) if id(x) not in known]

    def lend(self, given: dict[int, Tensor]) -> "Lent":
        """Return other tensors in the place of those with these ids, not in place yet."""
        puts = [(slot, _replaced(slot.value, given)) for slot in self.slots]
        return Lent(self, [(*slot, new) for slot, new in puts if new is not slot.value], given)

    def restore(self) -> None:
        """Put everything back that differs from what was there."""
        for held, keys, values in self._dicts:
            if len(held) != len(keys) or not (all(map(is_, held.values(), values)) and list(held) == keys):
                if list(held) != keys:
                    held.clear()
                held.update(zip(keys, values, strict=True))
        for held, values in self._others:
            if len(held) != len(values) or not all(map(is_, held, values)):
                held.clear()
                held.update(values) if isinstance(held, set) else held.extend(values)


class Lent:
    """Tensors that a module has in the place of its own inside of a `with`, which may be entered again."""

    def __init__(self, inventory: Inventory, puts: list[tuple[Any, Any, Any, Any]], given: dict[int, Tensor]) -> None:
        self.inventory, self.given, self._puts = inventory, given, puts

    def __enter__(self) -> None:
        for container, key, _, lent in self._puts:
            container[key] = lent

    def __exit__(self, *error: object) -> None:
        for container, key, own, _ in self._puts:
            if isinstance(container, dict) or key < len(container):
                container[key] = own


def _tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [x for part in value for x in _tensors_in(part)] if isinstance(value, tuple) else []


def _replaced(value: Any, given: dict[int, Tensor]) -> Any:
    """The same object, if none of these tensors is in it"""
    if isinstance(value, Tensor):
        return given.get(id(value), value)
    if not isinstance(value, tuple):
        return value
    parts = [_replaced(part, given) for part in value]
    if all(map(is_, parts, value)):
        return value
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


class Ambiguous(Lent):
    """A module that was called with several sets of tensors, and must not run in the backward of those calls."""

    def __init__(self, inventory: Inventory) -> None:
        super().__init__(inventory, [], {})
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        self._handles = [part.register_forward_pre_hook(self._refuse) for part in self.inventory.parts.values()]

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _refuse(self, *call: Any) -> None:
        raise MetastepError(
            f"{type(self.inventory.module).__name__} runs again in its backward, as torch.utils.checkpoint does, but "
            "one derivative is taken of calls with different parameters. Leave checkpoint out; or use ms.MAML() "
            "instead of ms.methods.Reference(), and apply the module to one set of parameters in each loss."
        )


def of_both(earlier: Lent, later: Lent) -> Lent:
    """What a module has in place in the backward of two calls."""
    same = earlier.given.keys() == later.given.keys() and all(later.given[i] is x for i, x in earlier.given.items())
    return earlier if same else Ambiguous(earlier.inventory)
