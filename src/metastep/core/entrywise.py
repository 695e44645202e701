"""What inner optimizers are made of: a state, checked options, and one formula for every parameter."""

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from metastep.core.checks import kept_in_shape, require_rate
from metastep.core.options import Bound, Described, options_of
from metastep.core.rates import Rate, rate_at, rates_of_leaves
from metastep.core.trees import Tree, alike, filled, is_number, tree_flatten, tree_leaves, tree_unflatten


class State(NamedTuple):
    """Hold what an inner optimizer carries from step to step.

    Args:
        params: φ.
        memory: What it remembers of earlier gradients: a tree of tensors.
        step: How many steps it has taken.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> ms.SGD(lr=0.1).init(torch.zeros(2))
        State(params=tensor([0., 0.]), memory=(), step=0)
    """

    params: Tree
    memory: Tree = ()
    step: Any = 0


class InnerOptimizer(Protocol):
    """Say what an inner optimizer must have: `init` and `advance`, pure functions of their arguments.

    A class may say more of itself. If `advance` is linear in state and gradient, a method
    `is_linear(state, meta, steps)` that returns True spares the sweep from storing anything but φ. `original` is the
    torch.optim class that it equals option by option, and `slots` what that class calls its memory. `entrywise = True`
    says that a step of an entry depends on no other entry, so that many tasks may be one tensor. `keeps` says that
    `Reptile(keep_memory=True)` may carry the memory from task to task: "memory" if it holds all that the next task must
    know, and "moments" for Adam, whose bias correction depends on the step too.

    Example:
        >>> import metastep as ms
        >>> class Plain:
        ...     def init(self, params):
        ...         return ms.optimizers.State(params)
        ...     def advance(self, state, grad, meta, steps):
        ...         moved = {name: p - 0.1 * steps * grad[name] for name, p in state.params.items()}
        ...         return ms.optimizers.State(moved, step=state.step + steps)
    """

    def init(self, params: Tree) -> State:
        """Return the state before the first step."""
        ...

    def advance(self, state: State, grad: Tree, meta: Tree, steps: int) -> State:
        """Return the state after `steps` steps that share one gradient."""
        ...


def is_linear(inner: InnerOptimizer, state: State, meta: Tree, steps: int) -> bool:
    """Return whether `advance` is linear in state and gradient, so that the sweep stores φ alone.

    The class itself says so, by a method `is_linear(state, meta, steps)`: a wrapper may pass its other attributes on.

    Args:
        inner: The inner optimizer.
        state: Its state before the window.
        meta: θ.
        steps: Steps of the window.

    Returns:
        Whether it is linear; False if it does not say.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> sgd, adam, x = ms.SGD(lr=0.1), ms.Adam(lr=0.1), torch.zeros(2)
        >>> ms.optimizers.is_linear(sgd, sgd.init(x), None, 4), ms.optimizers.is_linear(adam, adam.init(x), None, 4)
        (True, False)
    """
    declared = getattr(type(inner), "is_linear", None)
    return declared is not None and bool(declared(inner, state, meta, steps))


def with_lr(inner: Any, lr: Rate) -> InnerOptimizer:
    """Return the same inner optimizer with another learning rate, and refuse one that has none."""
    require_rate(inner)
    changed: InnerOptimizer = inner.with_lr(lr) if hasattr(inner, "with_lr") else replace(inner, lr=lr)
    return changed


class Option(NamedTuple):
    """A number that an optimizer was given, and the bound of what a function in its place may return."""

    name: str
    rate: Rate
    bound: Bound


Rates = list[tuple[Any, ...]]  # for one parameter: the numbers of each step
Moved = tuple[Any, list[Any]]  # one parameter and its memory


class Entrywise(Described):
    """Move every parameter by one formula, `_move(p, memory, g, numbers of each step, step)`.

    Any of its numbers may be a number, a tensor, a tree with one of them for each parameter, or a function of
    (meta, step) that gives one of these.
    """

    original: ClassVar[type[torch.optim.Optimizer]]
    numbers: ClassVar[tuple[str, ...]]
    """The names of these options, in the order in which `_move` takes them."""

    @cached_property
    def rates(self) -> tuple[Option, ...]:
        """The numbers in that order; a pair such as `betas` gives two."""
        known, rates = options_of(type(self)), []
        for name in self.numbers:
            value, bound = getattr(self, name), known[name].bound or Bound()
            pairs = [(f"{name}[{i}]", x) for i, x in enumerate(value)] if name == "betas" else [(name, value)]
            rates += [Option(f"{type(self).__name__}: {told}", rate, bound) for told, rate in pairs]
        return tuple(rates)

    @property
    def has_plain_numbers(self) -> bool:
        """Whether all of them are Python numbers, which serve any shape of φ."""
        return all(is_number(rate) for _, rate, _ in self.rates)

    def _move(self, p: Tensor, memory: list[Tensor], g: Tensor, rates: Rates, step: Any) -> Moved:
        raise NotImplementedError

    def advance(self, state: State, grad: Tree, meta: Tree, steps: int) -> State:
        """Take `steps` steps that share a gradient. Memory is a tuple of trees like φ."""
        params, spec = tree_flatten(state.params)
        memories = [tree_leaves(alike(tree, state.params, "memory")) for tree in state.memory]
        table = [[_of_leaves(rate, meta, state.step + i, state.params) for rate in self.rates] for i in range(steps)]
        moved = [
            self._move(p, [m[j] for m in memories], g, [tuple(rate[j] for rate in row) for row in table], state.step)
            for j, (p, g) in enumerate(zip(params, tree_leaves(filled(grad, state.params)), strict=True))
        ]
        memory = tuple(tree_unflatten(list(column), spec) for column in zip(*(m for _, m in moved), strict=True))
        after = [kept_in_shape(new, p) for p, (new, _) in zip(params, moved, strict=True)]
        return State(tree_unflatten(after, spec), memory, state.step + steps)


def _of_leaves(option: Option, meta: Tree, step: Any, params: Tree) -> list[Any]:
    return rates_of_leaves(rate_at(option.rate, meta, step, option.name, option.bound), params)


def combination(terms: list[tuple[Tensor, float]]) -> Tensor:
    """Return Σ coefficient · tensor, in one pass for each term."""
    (tensor, coefficient), *rest = terms
    total = tensor if coefficient == 1 else coefficient * tensor
    for tensor, coefficient in rest:
        total = torch.add(total, tensor, alpha=coefficient)
    return total


def in_double(step: Any) -> Any:
    """Return a count of steps whose powers are exact: float32 would lose up to 1e-3 of 1 − β₂ᵏ."""
    return step.double() if isinstance(step, Tensor) else step


def root(v: Tensor) -> Tensor:
    """Return √v with slope 0 at v = 0, where the true slope is infinite and would make every meta-gradient NaN."""
    positive = v > 0
    return torch.where(positive, torch.where(positive, v, 1.0).sqrt(), 0.0)
