"""What a module holds while it is called: other tensors in the place of its own, and afterwards what it held before.

A call may change a module: it counts, fills caches, moves buffers. The sweep calls it again and must find it as it was.
So a call lends the module tensors, and what it holds by attributes, dicts and lists is put back afterwards.
"""

from collections import deque
from collections.abc import Iterable
from functools import cached_property
from operator import is_
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

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
        self._contents: list[tuple[Any, list[Any], list[Any]]] = []  # containers, with keys and values
        seen: set[int] = set()
        for part in self.parts.values():
            self._take(vars(part), seen)
        self._empty = [held for held, _, values in self._contents if not values]  # most of them: hooks that nobody has
        self._filled = [content for content in self._contents if content[2]]

    def _take(self, held: Any, seen: set[int]) -> None:
        if id(held) in seen:
            return
        seen.add(id(held))
        values = list(held.values()) if isinstance(held, dict) else list(held)
        keys = list(held) if isinstance(held, dict) else list(range(len(values)))
        if not isinstance(held, tuple):
            self._contents.append((held, keys, values))
        for key, value in zip(keys, values, strict=True) if len(values) < _LARGE else ():
            if _tensors_in(value):
                if isinstance(held, dict | list):
                    self.slots.append(Slot(held, key, value))
            elif isinstance(value, dict | list | set | deque | tuple):
                self._take(value, seen)

    def is_current(self) -> bool:
        """Return whether the module still holds the same."""
        return not any(self._empty) and all(_holds(held, values) for held, _, values in self._filled)

    @cached_property
    def names(self) -> dict[str, int]:
        return names_of(self.module)

    @cached_property
    def others(self) -> list[Tensor]:
        """Return the tensors that are neither parameters nor buffers."""
        known = {id(x) for part in self.parts.values() for x in (*part._parameters.values(), *part._buffers.values())}
        return [x for slot in self.slots for x in _tensors_in(slot.value) if id(x) not in known]

    def lend(self, given: dict[int, Tensor]) -> "Lent":
        """Return other tensors in the place of those with these ids, not in place yet."""
        puts = [(slot, _replaced(slot.value, given)) for slot in self.slots]
        return Lent(self, [(*slot, new) for slot, new in puts if new is not slot.value], given)

    def changes(self) -> list["Change"]:
        """Return what was changed since."""
        begun = [Change(held, [], []) for held in self._empty if held]
        return begun + [Change(*content) for content in self._filled if not _holds(content[0], content[2])]


def names_of(module: nn.Module) -> dict[str, int]:
    """Return the id of each parameter and buffer; tied weights have several names, and one identity."""
    both = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {name: id(own) for name, own in both}


class Change:
    """A container that a call has changed. Undone, it holds what it held before, but for what was changed later."""

    def __init__(self, held: Any, keys: list[Any], values: list[Any]) -> None:
        self._held, self._keys, self._before = held, keys, values
        self._after = dict(held) if isinstance(held, dict) else None

    def undo(self) -> None:
        held, before = self._held, dict(zip(self._keys, self._before, strict=True))
        if self._after is None:
            held.clear()
            held.update(self._before) if isinstance(held, set) else held.extend(self._before)
            return
        for key, value in self._after.items():
            if key in held and held[key] is value and before.get(key, held) is not value:
                if key in before:
                    held[key] = before[key]
                else:
                    del held[key]
        held.update({key: value for key, value in before.items() if key not in self._after and key not in held})


def _holds(held: Any, values: list[Any]) -> bool:
    return len(held) == len(values) and all(map(is_, held.values() if isinstance(held, dict) else held, values))


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

    def differs(self, other: "Lent") -> bool:
        return any(other.given.get(i) is not x for i, x in self.given.items())


def _tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [x for part in value for x in _tensors_in(part)] if isinstance(value, tuple) else []


def _replaced(value: Any, given: dict[int, Tensor]) -> Any:
    """Return the object itself if none of these tensors is in it."""
    if isinstance(value, Tensor):
        return given.get(id(value), value)
    if not isinstance(value, tuple):
        return value
    parts = [_replaced(part, given) for part in value]
    if all(map(is_, parts, value)):
        return value
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


class Again:
    """Modules that may run again inside of a `with`, for the backward of their calls."""

    def __init__(self, several: Iterable[list[Lent]]) -> None:
        self._several = {id(lent[0].inventory.module): lent for lent in several}
        self._parts = {id(part): lent for lent in several for part in lent[0].inventory.parts.values()}
        self._ran: dict[int, Inventory] = {}

    def __enter__(self) -> None:
        for lent in self._several.values():
            lent[0].__enter__()
        self._handle = register_module_forward_pre_hook(self._called)

    def __exit__(self, *error: object) -> None:
        self._handle.remove()
        for inventory in self._ran.values():
            for change in inventory.changes():
                change.undo()
        for lent in self._several.values():
            lent[0].__exit__()

    def _called(self, part: nn.Module, args: Any) -> None:
        lent = self._parts.get(id(part))
        if lent is None:
            return
        module = lent[0].inventory.module
        if any(other.differs(lent[0]) for other in lent[1:]):
            raise MetastepError(
                f"{type(module).__name__} runs again in its backward, as torch.utils.checkpoint does, but one "
                "derivative is taken of calls with different parameters. Leave checkpoint out; or apply the module to "
                "one set of parameters in each loss, and use ms.MAML() instead of ms.methods.Reference()."
            )
        if id(module) not in self._ran:
            self._ran[id(module)] = Inventory(module)
