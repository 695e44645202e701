"""What a module holds while it is called: other tensors in the place of its own, and afterwards what it held before.

A call may change a module: it counts, fills caches, moves buffers. The sweep calls it again and must find it as it was.
So a call lends the module tensors, and what it changes of attributes, dicts and lists is undone afterwards.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from itertools import chain
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch.nn.modules.module import register_module_forward_pre_hook

from metastep.errors import MetastepError

Tensors = dict[int, Tensor]  # by the id of the module's own
_PLAIN = {Tensor, nn.Parameter}
_LARGE = 1000  # entries: a larger container is put back, but not searched for tensors


class Slot(NamedTuple):
    """A place that holds a tensor, or a tuple with tensors."""

    container: Any
    key: Any
    value: Any
    stands_for: Any
    """The same, or the parameter that should stand there."""


class Kind(NamedTuple):
    """What calls of a module with tensors of the same names have in common. Tensors are by ids of the module's own."""

    ids: list[int]
    """Of the given tensors."""
    buffers: Tensors
    rest: Tensors
    places: list[tuple[Any, Any, Any, int]]
    """Containers, keys and values, and what stands for them."""
    watched: list[int]
    """Which must not be written to."""


class Inventory:
    """All that a module holds, as it is now, by attributes and by containers in them."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parts = dict(module.named_modules())
        self.is_usable = False  # until somebody has looked at the kinds of its parts
        self._kinds: dict[tuple[tuple[str, ...], bool], Kind] = {}
        self.slots: list[Slot] = []
        self._contents: list[tuple[Any, list[Any], list[Any]]] = []  # containers, with keys and values
        seen: set[int] = set()
        for part in self.parts.values():
            if isinstance(part, nn.RNNBase):
                self._take_flat_weights(part, seen)
            self._take(vars(part), seen)
        self._empty = [held for held, _, values in self._contents if not values]  # most of them: hooks that nobody has
        self._filled = [content for content in self._contents if content[2]]
        self._tensors = [(*slot[:3], id(slot.stands_for)) for slot in self.slots if isinstance(slot.stands_for, Tensor)]
        self._tuples = [slot for slot in self.slots if not isinstance(slot.stands_for, Tensor)]
        self._sizes = [len(values) for _, _, values in self._filled]
        self._values = [value for _, _, values in self._filled for value in values]
        self._held = [held for held, _, _ in self._filled]
        self._views = [held.values() if isinstance(held, dict) else held for held in self._held]

    def _take(self, held: Any, seen: set[int]) -> None:
        if id(held) in seen:
            return
        seen.add(id(held))
        values = list(held.values()) if isinstance(held, dict) else list(held)
        keys = list(held) if isinstance(held, dict) else list(range(len(values)))
        if not isinstance(held, tuple):
            self._contents.append((held, keys, values))
        for key, value in zip(keys, values, strict=True) if len(values) < _LARGE else ():
            if isinstance(value, Tensor | tuple) and _tensors_in(value):
                if isinstance(held, dict | list):
                    self.slots.append(Slot(held, key, value, value))
            elif isinstance(value, dict | list | set | deque | tuple):
                self._take(value, seen)

    def _take_flat_weights(self, part: nn.RNNBase, seen: set[int]) -> None:
        """A recurrent layer reads its parameters in a list, where torch.func.functional_call leaves others behind"""
        held = part._flat_weights
        seen.add(id(held))
        self._contents.append((held, list(range(len(held))), list(held)))
        for i, name in enumerate(part._flat_weights_names):
            if isinstance(getattr(part, name, None), Tensor):
                self.slots.append(Slot(held, i, held[i], getattr(part, name)))

    @cached_property
    def names(self) -> dict[str, int]:
        """The ids of parameters and buffers: tied weights have several names, and one identity."""
        parameters = self.module.named_parameters(remove_duplicate=False)
        return {name: id(own) for name, own in (*parameters, *self.module.named_buffers(remove_duplicate=False))}

    @cached_property
    def is_recurrent(self) -> bool:
        return any(isinstance(part, nn.RNNBase | nn.RNNCellBase) for part in self.parts.values())

    @cached_property
    def part_ids(self) -> set[int]:
        return set(map(id, self.parts.values()))

    @cached_property
    def buffers(self) -> Tensors:
        return {id(buffer): buffer for buffer in self.module.buffers()}

    @cached_property
    def others(self) -> Tensors:
        """All tensors that are not buffers: parameters, and what stands in other attributes."""
        found = {id(x): x for slot in self.slots for x in _tensors_in(slot.stands_for)}
        return {i: x for i, x in found.items() if i not in self.buffers}

    def is_current(self) -> bool:
        """Return whether the module still holds the same."""
        return not any(self._empty) and self._holds_the_same()

    def _holds_the_same(self) -> bool:
        """Return whether what was filled holds the same objects. Every call asks this twice, so it takes few steps."""
        return list(map(len, self._held)) == self._sizes and all(
            map(is_, chain.from_iterable(self._views), self._values)
        )

    def changes(self) -> list["Change"]:
        """Return what was changed since."""
        begun = [Change(held, [], []) for held in self._empty if held]
        if self._holds_the_same():
            return begun
        return begun + [Change(*content) for content in self._filled if not _holds(content[0], content[2])]

    def lend(self, params: Mapping[str, Tensor], rest: str, carried: Tensors | None = None) -> "Lent":
        """Return tensors to put in the place of the module's own. What is written into a buffer is discarded.

        Args:
            params: Tensors by name.
            rest: What stands for tensors that are not given: "own", "constant" or "copy".
            carried: What an earlier call has left in buffers.
        """
        kind = self._kind(tuple(params), rest != "own")
        given = dict(zip(kind.ids, params.values(), strict=True))
        lent = given | {i: (carried or {}).get(i, x).clone() for i, x in kind.buffers.items()}
        lent |= {i: x.clone() if rest == "copy" else x.detach() for i, x in kind.rest.items()}
        puts = [(held, key, own, lent[i]) for held, key, own, i in kind.places if lent[i] is not own]
        for slot in self._tuples:
            if (replaced := _replaced(slot.stands_for, lent)) is not slot.value:
                puts.append((*slot[:3], replaced))
        return Lent(self, given, puts, {i: lent[i] for i in kind.watched}, rest == "copy")

    def _kind(self, names: tuple[str, ...], all_others: bool) -> "Kind":
        """Return what calls with tensors of these names have in common."""
        if (names, all_others) not in self._kinds:
            self._require_known(names)
            ids = [self.names[name] for name in names]
            buffers = {i: x for i, x in self.buffers.items() if i not in ids}
            rest = {i: x for i, x in self.others.items() if all_others and i not in ids}
            lent = {*ids, *buffers, *rest}
            places = [place for place in self._tensors if place[3] in lent]
            self._kinds[names, all_others] = Kind(ids, buffers, rest, places, list(lent & self.others.keys()))
        return self._kinds[names, all_others]

    def _require_known(self, names: Iterable[str]) -> None:
        if unknown := set(names) - self.names.keys():
            raise MetastepError(
                f"{type(self.module).__name__} has no parameter or buffer {min(unknown)!r}. Name them as "
                "ms.parameters(module) does."
            )


class Change:
    """A container that a call has changed. Undone, it holds what it held before, but for what was changed later."""

    def __init__(self, held: Any, keys: list[Any], values: list[Any]) -> None:
        self._held, self._keys, self._before = held, keys, values
        self._after = dict(held) if isinstance(held, dict) else None

    def undo(self) -> None:
        if self._after is None:
            self._held.clear()
            (self._held.update if isinstance(self._held, set) else self._held.extend)(self._before)
            return
        before = dict(zip(self._keys, self._before, strict=True))
        for key in [key for key, value in self._after.items() if self._held.get(key, before) is value]:
            if key not in before:
                del self._held[key]
            elif before[key] is not self._after[key]:
                self._held[key] = before[key]
        self._held.update({k: x for k, x in before.items() if k not in self._after and k not in self._held})


class Lent:
    """Tensors that a module has in the place of its own inside of a `with`, which may be entered again."""

    def __init__(
        self,
        inventory: Inventory,
        given: Tensors,
        puts: list[tuple[Any, Any, Any, Any]],
        watched: Tensors,
        closely: bool,
    ) -> None:
        self.inventory, self.given, self._puts, self._watched = inventory, given, puts, watched
        self._states = _states_of(watched.values())
        self._values = [(i, x, x.detach().clone()) for i, x in watched.items()] if closely else []
        self._replaced: list[int] = []

    def __enter__(self) -> None:
        for container, key, _, lent in self._puts:
            container[key] = lent

    def written(self) -> Tensors:
        """Return what a call that is not over yet has left in buffers."""
        own = self.inventory.buffers.keys() - self.given.keys()
        now = [(id(put[2]), put[0].get(put[1]), put[3]) for put in self._puts if id(put[2]) in own]
        return {i: x for i, x, lent in now if isinstance(x, Tensor) and (x is not lent or lent._version)}

    def __exit__(self, *error: object) -> None:
        for container, key, own, lent in self._puts:
            if key in container if isinstance(container, dict) else key < len(container):
                same = container[key] is lent
                if isinstance(own, nn.Parameter) and not same:
                    self._replaced.append(id(own))
                if same or isinstance(own, nn.Parameter) or id(own) in self.inventory.buffers:
                    container[key] = own  # what a call leaves in another attribute is there for the loss

    def differs(self, other: "Lent") -> bool:
        return any(other.given.get(i) is not x for i, x in self.given.items())

    def require_unmoved(self) -> None:
        """Refuse a call that has written into a tensor, or let it hold other numbers."""
        now = _states_of(self._watched.values())
        pairs = zip(self._watched, self._states, now, strict=True)
        moved = [] if now == self._states else [which for which, before, state in pairs if state != before]
        moved += [which for which, lent, before in self._values if not _equal(lent, before)]
        for which in (*moved, *self._replaced):
            raise MetastepError(self._moved(which))

    def _moved(self, which: int) -> str:
        names, kind = {i: name for name, i in self.inventory.names.items()}, type(self.inventory.module).__name__
        if which not in names:
            return (
                f"{kind} writes into a tensor of its own that is not a buffer. The sweep calls the module again, and "
                "it would write again. Make the tensor a buffer with self.register_buffer(name, tensor), which is "
                "restored after every call."
            )
        return (
            f"{kind} moves its parameter {names[which]!r} in forward, as momentum encoders and max_norm of an "
            "embedding do. The sweep calls the module again, and would move it again, so the meta-gradient would be "
            "wrong. Move it outside of forward, after each meta-step. Leave max_norm out."
        )


class Again:
    """Modules that may run again inside of a `with`, for the backward of their calls."""

    def __init__(self, several: Iterable[list[Lent]], told: Callable[[], None]) -> None:
        """told: called when one of them runs again."""
        self._several, self._told = list(several), told
        self._ran: dict[int, Inventory] = {}

    def __enter__(self) -> None:
        for lent in self._several:
            lent[0].__enter__()
        self._handle = register_module_forward_pre_hook(self._called)

    def __exit__(self, *error: object) -> None:
        self._handle.remove()
        for inventory in self._ran.values():
            for change in inventory.changes():
                change.undo()
        for lent in self._several:
            lent[0].__exit__()

    def _called(self, part: nn.Module, inputs: Any) -> None:
        lent = next((lent for lent in self._several if id(part) in lent[0].inventory.part_ids), None)
        if lent is None:
            return
        self._told()
        module = lent[0].inventory.module
        if any(other.differs(lent[0]) for other in lent[1:]):
            raise MetastepError(
                f"{type(module).__name__} runs again in its backward, as torch.utils.checkpoint does, but one "
                "derivative is taken of calls with different parameters. Leave checkpoint out; or apply the module to "
                "one set of parameters in each loss, and use ms.MAML() instead of ms.methods.Reference()."
            )
        if id(module) not in self._ran:
            self._ran[id(module)] = Inventory(module)


def _holds(held: Any, values: list[Any]) -> bool:
    return len(held) == len(values) and all(map(is_, held.values() if isinstance(held, dict) else held, values))


def _states_of(tensors: Collection[Tensor]) -> list[Any]:
    """Return what changes when tensors get other numbers; None where nobody can tell."""
    if {*map(type, tensors)} <= _PLAIN:
        try:
            return [(x._version, x.data_ptr()) for x in tensors]
        except RuntimeError:  # some are of inference mode, or have no storage, as those of functorch
            pass
    return [_state_of(x) for x in tensors]


def _state_of(x: Tensor) -> Any:
    if type(x) not in _PLAIN or x.is_inference() or _functorch.is_functorch_wrapped_tensor(x):
        return None
    return x._version, x.data_ptr() if x.layout is torch.strided else None


def _equal(a: Tensor, b: Tensor) -> bool:
    """Bit by bit, as far as anybody can tell"""
    return _functorch.is_functorch_wrapped_tensor(a) or bool((a.detach() == b).logical_or(b.isnan()).all())


def _tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [x for part in value for x in _tensors_in(part)] if isinstance(value, tuple) else []


def _replaced(value: Any, given: Tensors) -> Any:
    """The same object, if none of these tensors is in it"""
    if isinstance(value, Tensor):
        return given.get(id(value), value)
    if not isinstance(value, tuple):
        return value
    parts = [_replaced(part, given) for part in value]
    if all(map(is_, parts, value)):
        return value
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
