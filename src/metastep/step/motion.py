"""How an inner optimizer moves φ, on flat lists of tensors, and what pulls Λ back through its steps.

The steps of SGD are an affine map with numbers as coefficients: its pullback needs no graph. An optimizer that treats
every entry alike moves all parameters as one vector. Any other moves the trees that it was written for.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from metastep.core.entrywise import Entrywise
from metastep.core.guards import undrawn
from metastep.core.optimizers import SGD, InnerOptimizer, State
from metastep.core.stability import Row, coefficients
from metastep.core.torch_optimizer import TorchOptimizer
from metastep.core.trees import Tree, tree_flatten, tree_leaves, tree_unflatten
from metastep.step.differentiate import Autograd, Functional, Known, Nesting, Tensors

Backend = Autograd | Functional


class At(NamedTuple):
    """Hold a state as lists: φ, the optimizer's memory, the number of steps, and how the memory was nested."""

    params: Tensors
    memory: Tensors
    step: Any
    nesting: Any = None


class Adjoint(NamedTuple):
    """Hold Λ: the derivatives of the outer loss in φ and in the memory. A memory of None is all zeros."""

    params: Tensors
    memory: Sequence[Tensor | None] | None = None


class Pulled(NamedTuple):
    """Hold Λ before the steps, and the derivatives in the gradient that they shared and in θ."""

    before: Adjoint
    grads: Tensors
    meta: Known | None


PullBack = Callable[[Adjoint], Pulled]


class Motion(Protocol):
    """Move φ, and pull Λ back. The lists of an `At` and an `Adjoint` are as the motion likes to have them."""

    nesting: Nesting
    """How φ is nested."""

    def begin(self, state: State) -> At: ...

    def state(self, at: At) -> State: ...

    def move(self, at: At, grads: Tensors, meta: Tensors, steps: int) -> At:
        """Return the state after so many steps. Autograd may follow it."""

    def advance(self, at: At, grads: Tensors, meta: Tensors, steps: int) -> tuple[At, PullBack]:
        """Return the same, without a graph, and what pulls Λ back."""

    def reduced(self, at: At) -> At:
        """Return what the pullback of the next window needs of a state."""

    def parted(self, params: Tensors) -> Tensors:
        """Return one tensor for each parameter."""

    def gathered(self, leaves: Tensors) -> Tensors:
        """Return the same as `At` and `Adjoint` have it."""


class Affine:
    """Move by coefficients: (φ, v) ← A·(φ, v) + B·g, where A and B are numbers."""

    def __init__(self, inner: SGD, mapped: bool, params: Nesting) -> None:
        self._inner, self._mix, self.nesting = inner, _mixed if mapped else _mixed_at_once, params

    def begin(self, state: State) -> At:
        (memory,) = state.memory or ({},)
        return At(self.nesting.leaves(state.params), self.nesting.leaves(memory) if state.memory else [], state.step)

    def state(self, at: At) -> State:
        memory = (self.nesting.tree(at.memory),) if at.memory else ()
        return State(self.nesting.tree(at.params), memory, at.step)

    def reduced(self, at: At) -> At:
        return at._replace(memory=[x.new_zeros(()).expand(x.shape) for x in at.memory])

    def parted(self, params: Tensors) -> Tensors:
        return params

    def gathered(self, leaves: Tensors) -> Tensors:
        return leaves

    def move(self, at: At, grads: Tensors, meta: Tensors, steps: int) -> At:
        params, velocity = _rows(self._inner, bool(at.memory), steps)
        old, mix = (at.params, at.memory, grads), _mixed if torch.is_grad_enabled() else self._mix
        moved = mix(old, velocity) if velocity else []
        return At(mix((*old, moved), params), moved, at.step + steps)

    def advance(self, at: At, grads: Tensors, meta: Tensors, steps: int) -> tuple[At, PullBack]:
        after, mix, remembers = self.move(at, grads, meta, steps), self._mix, bool(at.memory)
        params, velocity = coefficients(self._inner, remembers, steps)  # so that the pullback keeps no tensor

        def pull(later: Adjoint) -> Pulled:
            both = (later.params, later.memory or [])
            of_params, of_memory, of_grads = zip(params, velocity or (0.0, 0.0, 0.0), strict=True)
            before = Adjoint(mix(both, of_params), mix(both, of_memory) if remembers else None)
            return Pulled(before, mix(both, of_grads), None)

        return after, pull


def _rows(inner: SGD, remembers: bool, steps: int) -> tuple[Row, Row | None]:
    """Coefficients of φ, v, g and the new v for the new φ, and of φ, v and g for the new v"""
    params, velocity = coefficients(inner, remembers, steps)
    if velocity is None or steps > 1 or inner.nesterov:
        return (*params, 0.0), velocity
    return (1.0, 0.0, 0.0, -float(inner.lr)), velocity  # φ ← φ − ηv takes the fewest operations


def _mixed(lists: Sequence[Any], row: Row) -> Tensors:
    """Σ coefficient · tensors, tensor by tensor"""
    (first, scale), *rest = _used(lists, row)
    total = [x if scale == 1 else scale * x for x in first]
    for others, c in rest:
        total = [torch.add(a, b, alpha=c) for a, b in zip(total, others, strict=True)]
    return total


def _mixed_at_once(lists: Sequence[Any], row: Row) -> Tensors:
    """Return the same in one call for each term. vmap does not know it, and its graph would keep the tensors."""
    (first, scale), *rest = _used(lists, row)
    if not rest:
        return list(first) if scale == 1 else list(torch._foreach_mul(first, scale))
    (second, c), *rest = rest
    total = torch._foreach_add(first if scale == 1 else torch._foreach_mul(first, scale), second, alpha=c)
    for others, c in rest:
        total = torch._foreach_add(total, others, alpha=c)
    return list(total)


@cache
def _terms(row: Row, is_there: tuple[bool, ...]) -> list[tuple[int, float]]:
    """Return which terms count, one with coefficient 1 first if there is one: it needs no product."""
    used = [(i, c) for i, (c, there) in enumerate(zip(row, is_there, strict=True)) if there and c != 0]
    return sorted(used, key=lambda term: term[1] != 1) or [(0, 0.0)]


def _used(lists: Sequence[Any], row: Row) -> list[tuple[Tensors, float]]:
    return [(lists[i], c) for i, c in _terms(row, tuple(map(bool, lists)))]


class Recorded:
    """Move as the optimizer's own `advance` does, and keep its graph."""

    def __init__(self, inner: InnerOptimizer, backend: Backend, params: Nesting, meta: Nesting, like: Tensors) -> None:
        self._backend, self.nesting, self._meta = backend, params, meta
        # An optimizer is asked once for one result, but the specification asks again, and refuses noise.
        together = of_one_vector(inner, like) if len(like) > 1 else None
        self._together, inner = together is not None, together or inner
        refused = undrawn(inner.advance, "an inner optimizer, or a rate of it,")
        self._advance = refused if backend.first else inner.advance
        self._sizes, self._shapes = [p.numel() for p in like], [p.shape for p in like]

    def begin(self, state: State) -> At:
        params, memory = self.nesting.leaves(state.params), state.memory
        if self._together:
            params, memory = self.gathered(params), self._memory_gathered(memory)
        return At(params, *_flat(memory, state.step))

    def state(self, at: At) -> State:
        state = self._state(at)
        if not self._together:
            return state
        return State(self.nesting.tree(self.parted(at.params)), self._memory_parted(state.memory), at.step)

    def _memory_gathered(self, memory: Any) -> Any:
        if isinstance(memory, list):  # of an optimizer that was traced: the slots of each parameter
            return [{name: self._slot_gathered([slots[name] for slots in memory]) for name in memory[0]}]
        return tuple(self.gathered(self.nesting.leaves(part)) for part in memory)

    def _memory_parted(self, memory: Any) -> Any:
        if isinstance(memory, list):
            parts = {name: self._slot_parted(x) for name, x in memory[0].items()}
            return [{name: part[i] for name, part in parts.items()} for i in range(len(self._sizes))]
        return tuple(self.nesting.tree(self.parted(part)) for part in memory)

    def _slot_gathered(self, each: Tensors) -> Tensor:
        """One vector; a number that all parameters have, such as NAdam's product, stays one"""
        return each[0] if each[0].dim() == 0 else self.gathered(each)[0]

    def _slot_parted(self, x: Tensor) -> Tensors:
        return [x] * len(self._sizes) if x.dim() == 0 else self.parted([x])

    def _state(self, at: At) -> State:
        params = at.params if self._together else self.nesting.tree(at.params)
        return State(params, tree_unflatten(at.memory, at.nesting), at.step)

    def reduced(self, at: At) -> At:
        return at

    def parted(self, params: Tensors) -> Tensors:
        if not self._together:
            return params
        return [part.view(shape) for part, shape in zip(torch.split(params[0], self._sizes), self._shapes, strict=True)]

    def gathered(self, leaves: Tensors) -> Tensors:
        return [torch.cat([x.reshape(-1) for x in leaves])] if self._together else leaves

    def move(self, at: At, grads: Tensors, meta: Tensors, steps: int) -> At:
        return self._moved(at, self.gathered(grads), meta, steps)

    def _moved(self, at: At, grads: Tensors, meta: Tensors, steps: int) -> At:
        shared = grads if self._together else self.nesting.tree(grads)
        after = self._advance(self._state(at), shared, self._meta.tree(meta), steps)
        return At(tree_leaves(after.params), *_flat(after.memory, after.step))

    def advance(self, at: At, grads: Tensors, meta: Tensors, steps: int) -> tuple[At, PullBack]:
        size, upto = len(at.params), len(at.params) + len(at.memory)
        made: list[At] = []

        def moved(given: Tensors, meta: Tensors) -> Tensors:
            before = at._replace(params=given[:size], memory=given[size:upto])
            made[:] = [self._moved(before, given[upto:], meta, steps)]
            return [*made[0].params, *made[0].memory]

        results, pull_back = self._backend.vjp(moved, [*at.params, *at.memory, *self.gathered(grads)], meta)
        rest = made.pop()

        def pull(later: Adjoint) -> Pulled:
            memory = later.memory or [None] * (len(results) - size)
            found, by_meta = pull_back([*later.params, *memory])
            params = [_or_zeros(x, p) for x, p in zip(found[:size], at.params, strict=True)]
            shared = [_or_zeros(x, p) for x, p in zip(found[upto:], at.params, strict=True)]
            return Pulled(Adjoint(params, found[size:upto]), self.parted(shared), by_meta)

        return rest._replace(params=results[:size], memory=results[size:]), pull


def _flat(memory: Tree, step: Any) -> tuple[Tensors, Any, Any]:
    leaves, nesting = tree_flatten(memory)
    return leaves, step, nesting


def _or_zeros(x: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if x is None else x


def motion_of(inner: InnerOptimizer, backend: Backend, start: Tree, params: Nesting, meta: Nesting) -> Motion:
    """Choose how an optimizer moves from `start`, by what it says of itself."""
    if type(inner) is SGD and inner.has_plain_numbers:
        return Affine(inner, backend.mapped, params)
    return Recorded(inner, backend, params, meta, params.leaves(start))


def of_one_vector(inner: InnerOptimizer, params: Tensors) -> InnerOptimizer | None:
    """Return what moves all parameters as one vector, or None if their entries do not move alike."""
    if isinstance(inner, TorchOptimizer):
        return inner.of_one_vector(params)
    own = vars(type(inner)).get("entrywise")  # a subclass says so itself
    return inner if own and isinstance(inner, Entrywise) and inner.has_plain_numbers else None
