"""How an inner optimizer moves φ, on flat lists of tensors, and what pulls Λ back through its steps.

The steps of SGD are an affine map with numbers as coefficients: its pullback needs no graph. An optimizer that treats
every entry alike moves all parameters as one vector. Any other moves the trees that it was written for.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from metastep.core.entrywise import Entrywise
from metastep.core.guards import undrawn
from metastep.core.optimizers import SGD, InnerOptimizer, State
from metastep.core.trees import Tree, tree_flatten, tree_leaves, tree_unflatten
from metastep.step.differentiate import Autograd, Functional, Known, Tensors
from metastep.step.nesting import Nesting

Backend = Autograd | Functional
Row = tuple[float, ...]  # coefficients of φ, v and g


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

    def advance(self, at: At, grads: Tensors, meta: Tensors, steps: int) -> tuple[At, PullBack]: ...

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

    def parted(self, params: Tensors) -> Tensors:
        return params

    def gathered(self, leaves: Tensors) -> Tensors:
        return leaves

    def advance(self, at: At, grads: Tensors, meta: Tensors, steps: int) -> tuple[At, PullBack]:
        del meta
        remembers = bool(at.memory)  # so that the pullback keeps no tensor
        params, velocity = _coefficients(self._inner, remembers, steps)
        mix, old = self._mix, (at.params, at.memory, grads)
        after = At(mix(old, params), mix(old, velocity) if velocity else [], at.step + steps)

        def pull(later: Adjoint) -> Pulled:
            both = (later.params, later.memory or [])
            of_params, of_memory, of_grads = zip(params, velocity or (0.0, 0.0, 0.0), strict=True)
            before = Adjoint(mix(both, of_params), mix(both, of_memory) if remembers else None)
            return Pulled(before, mix(both, of_grads), None)

        return after, pull


@lru_cache
def _coefficients(inner: SGD, remembers: bool, steps: int) -> tuple[Row, Row | None]:
    """Rows of A and B, found by following unit vectors"""
    rates = [tuple(rate for _, rate, _ in inner.rates)] * steps
    columns = [
        inner._follow(p, [v] if remembers else [], g, rates)
        for p, v, g in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    ]
    velocity = tuple(memory[0] for _, memory in columns) if columns[0][1] else None
    return tuple(moved for moved, _ in columns), velocity


def _mixed(lists: Sequence[Any], row: Row) -> Tensors:
    """Σ coefficient · tensors, tensor by tensor"""
    (first, scale), *rest = _used(lists, row)
    total = [x if scale == 1 else scale * x for x in first]
    for others, c in rest:
        total = [torch.add(a, b, alpha=c) for a, b in zip(total, others, strict=True)]
    return total


def _mixed_at_once(lists: Sequence[Any], row: Row) -> Tensors:
    """The same in one call for each term, which vmap does not know"""
    (first, scale), *rest = _used(lists, row)
    if not rest:
        return list(first) if scale == 1 else list(torch._foreach_mul(first, scale))
    (second, c), *rest = rest
    total = torch._foreach_add(first if scale == 1 else torch._foreach_mul(first, scale), second, alpha=c)
    for others, c in rest:
        torch._foreach_add_(total, others, alpha=c)
    return list(total)


def _used(lists: Sequence[Any], row: Row) -> list[tuple[Tensors, float]]:
    """Those that count, one with coefficient 1 first if there is one: it needs no product"""
    used = [(tensors, c) for tensors, c in zip(lists, row, strict=True) if tensors and c != 0]
    return sorted(used, key=lambda term: term[1] != 1) or [(lists[0], 0.0)]


class Recorded:
    """Move as the optimizer's own `advance` does, and keep its graph."""

    def __init__(self, inner: InnerOptimizer, backend: Backend, params: Nesting, meta: Nesting, like: Tensors) -> None:
        self._backend, self.nesting, self._meta = backend, params, meta
        # An optimizer is asked once for one result, but the specification asks again, and refuses noise.
        refused = undrawn(inner.advance, "an inner optimizer, or a rate of it,")
        self._advance = refused if backend.first else inner.advance
        self._sizes, self._shapes = [p.numel() for p in like], [p.shape for p in like]
        self._together = is_entrywise(inner) and len(like) > 1

    def begin(self, state: State) -> At:
        if self._together:
            state = State(
                [self._joined(state.params)], tuple([self._joined(part)] for part in state.memory), state.step
            )
            return At(state.params, *_flat(state.memory, state.step))
        return At(self.nesting.leaves(state.params), *_flat(state.memory, state.step))

    def _joined(self, tree: Tree) -> Tensor:
        return torch.cat([x.reshape(-1) for x in self.nesting.leaves(tree)])

    def state(self, at: At) -> State:
        state = self._state(at)
        if not self._together:
            return state
        parts = tuple(self.nesting.tree(self.parted(part)) for part in state.memory)
        return State(self.nesting.tree(self.parted(at.params)), parts, at.step)

    def _state(self, at: At) -> State:
        params = at.params if self._together else self.nesting.tree(at.params)
        return State(params, tree_unflatten(at.memory, at.nesting), at.step)

    def parted(self, params: Tensors) -> Tensors:
        if not self._together:
            return params
        return [part.view(shape) for part, shape in zip(torch.split(params[0], self._sizes), self._shapes, strict=True)]

    def gathered(self, leaves: Tensors) -> Tensors:
        return [torch.cat([x.reshape(-1) for x in leaves])] if self._together else leaves

    def advance(self, at: At, grads: Tensors, meta: Tensors, steps: int) -> tuple[At, PullBack]:
        size, upto = len(at.params), len(at.params) + len(at.memory)
        rest: list[Any] = []  # what is no tensor of the result

        def moved(given: Tensors, meta: Tensors) -> Tensors:
            state = self._state(at._replace(params=given[:size], memory=given[size:upto]))
            shared = given[upto:] if self._together else self.nesting.tree(given[upto:])
            after = self._advance(state, shared, self._meta.tree(meta), steps)
            memory, *others = _flat(after.memory, after.step)
            rest[:] = others
            return [*tree_leaves(after.params), *memory]

        results, pull_back = self._backend.vjp(moved, [*at.params, *at.memory, *self.gathered(grads)], meta)

        def pull(later: Adjoint) -> Pulled:
            memory = later.memory or [None] * (len(results) - size)
            found, by_meta = pull_back([*later.params, *memory])
            params = [_or_zeros(x, p) for x, p in zip(found[:size], at.params, strict=True)]
            shared = [_or_zeros(x, p) for x, p in zip(found[upto:], at.params, strict=True)]
            return Pulled(Adjoint(params, found[size:upto]), self.parted(shared), by_meta)

        return At(results[:size], results[size:], *rest), pull


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


def is_entrywise(inner: InnerOptimizer) -> bool:
    """Whether all entries of all parameters move alike, so that they may be one vector."""
    own = vars(type(inner)).get("entrywise")  # a subclass says so itself
    return bool(own and isinstance(inner, Entrywise) and inner.has_plain_numbers)
