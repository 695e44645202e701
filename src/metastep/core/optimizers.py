"""Inner optimizers as pure functions: Φ of the paper, applied `steps` times to one shared gradient.

A dynamics has `init(params)`, the state before the first step, and `advance(state, grad, meta, steps)`, the state
after `steps` steps that all use `grad`. Weight decay, moments and schedules still move at every step, so that only
the gradient is estimated. Each one equals its `torch.optim` original when `steps` is 1 and the gradient is new.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from metastep.core.checks import kept_in_shape, require_memory, require_moved, require_takes
from metastep.core.rates import Rate, rate_at, rates_of_leaves, require_fractions, require_rates
from metastep.core.registry import register
from metastep.core.trees import Tree, alike, filled, is_number, tree_flatten, tree_leaves, tree_unflatten, zeros_like
from metastep.errors import MetastepError

__all__ = ["SGD", "Adam", "AdamW", "InnerOptimizer", "RMSprop", "Rate", "State", "StepFunction"]


class State(NamedTuple):
    """What the inner optimizer carries: φ, its memory of earlier gradients, and how many steps it has taken."""

    params: Tree
    memory: Tree = ()
    step: Any = 0


class InnerOptimizer(Protocol):
    # A class may say more of itself: `original`, the torch.optim class that it equals option by option; and
    # `entrywise = True`, if a step of an entry depends on no other entry, so that many tasks may be one tensor.

    def init(self, params: Tree) -> State: ...

    def advance(self, state: State, grad: Tree, meta: Tree, steps: int) -> State: ...


@register("optimizer", "sgd")
@dataclass(frozen=True)
class SGD:
    """v ← μv + (1−τ)ĝ,  φ ← φ − ηv  (Nesterov: φ ← φ − η(ĝ + μv))  with  ĝ = g + ωφ;  the first step sets v = ĝ.

    Where μ is the number 0, v = ĝ too, as torch.optim has it for a group without momentum.
    """

    original: ClassVar[type[torch.optim.Optimizer]] = torch.optim.SGD
    entrywise: ClassVar[bool] = True
    lr: Rate
    momentum: Rate = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: Rate = 0.0

    def __post_init__(self) -> None:
        require_rates(lr=self.lr, momentum=self.momentum, dampening=self.dampening, weight_decay=self.weight_decay)
        if self.nesterov and (not self._remembers or self.dampening):
            raise MetastepError("nesterov=True needs momentum above 0 and dampening 0, as in torch.optim.SGD.")

    @property
    def _remembers(self) -> bool:
        return not (is_number(self.momentum) and self.momentum == 0)

    def init(self, params: Tree) -> State:
        return State(params)  # as in torch.optim, the first step makes the velocity

    def advance(self, state: State, grad: Tree, meta: Tree, steps: int) -> State:
        return _leaf_by_leaf(self._move, state, grad, meta, steps, (self.lr, self.momentum, self.weight_decay))

    def is_linear(self, state: State, meta: Tree, steps: int) -> bool:
        """Whether `advance` is linear in state and gradient, so that its pullback needs the values of neither.

        Any dynamics may have this; the sweep then stores φ alone. One that does not have it is taken as not linear.
        """
        rates = (self.lr, self.momentum, self.weight_decay)  # only a function of (meta, step) can hold θ
        scheduled = (rate_at(r, meta, state.step + i) for r in rates if callable(r) for i in range(steps))
        numbers = all(is_number(leaf) for rate in scheduled for leaf in tree_leaves(rate))
        # A subclass with steps of its own says so itself.
        return numbers and all(getattr(type(self), n) is getattr(SGD, n) for n in ("advance", "_move", "_follow"))

    def _move(self, p: Tensor, memory: list[Tensor], g: Tensor, rates: "Rates", step: int) -> "Moved":
        if not all(is_number(rate) for row in rates for rate in row):
            return self._follow(p, memory, g, rates)
        # (φ, v, g) enter linearly: follow their unit vectors, and n steps cost what one does.
        still = [0.0 for _ in memory]
        units = [(1.0, still, 0.0), (0.0, still, 1.0), *((0.0, [1.0], 0.0) for _ in memory)]
        columns = [(to_p, *to_v) for to_p, to_v in (self._follow(*unit, rates) for unit in units)]
        moved, *velocity = self._combine([p, g, *memory], list(zip(*columns, strict=True)))
        return moved, velocity

    def _combine(self, inputs: Sequence[Tensor], rows: Sequence[Sequence[float]]) -> Sequence[Tensor]:
        return [_combination(list(zip(inputs, row, strict=True))) for row in rows]

    def _follow(self, p: Any, memory: list[Any], g: Any, rates: "Rates") -> "Moved":
        for lr, momentum, weight_decay in rates:
            d = g + weight_decay * p
            if self._remembers:
                still = not memory or (is_number(momentum) and momentum == 0)
                v = d if still else momentum * memory[0] + (1 - self.dampening) * d
                d, memory = d + momentum * v if self.nesterov else v, [v]
            p = p - lr * d
        return p, memory


@register("optimizer", "adam")
@dataclass(frozen=True)
class Adam:
    """m ← β₁m + (1−β₁)ĝ,  v ← β₂v + (1−β₂)ĝ²,  φ ← φ − η m̂ / (√v̂ + ε)  with  ĝ = g + ωφ, or φ decayed apart."""

    original: ClassVar[type[torch.optim.Optimizer]] = torch.optim.Adam
    entrywise: ClassVar[bool] = True
    lr: Rate = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: Rate = 0.0
    decoupled_weight_decay: bool = False

    def __post_init__(self) -> None:
        require_rates(lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)
        require_fractions(betas=self.betas)

    def init(self, params: Tree) -> State:
        return State(params, (zeros_like(params), zeros_like(params)))

    def advance(self, state: State, grad: Tree, meta: Tree, steps: int) -> State:
        return _leaf_by_leaf(self._move, state, grad, meta, steps, (self.lr, self.weight_decay))

    def _move(self, p: Tensor, memory: list[Tensor], g: Tensor, rates: "Rates", step: int) -> "Moved":
        (m, v), (b1, b2) = memory, self.betas
        for i, (lr, weight_decay) in enumerate(rates):
            p, d = (p - lr * weight_decay * p, g) if self.decoupled_weight_decay else (p, g + weight_decay * p)
            m = b1 * m + (1 - b1) * d
            v = b2 * v + (1 - b2) * d * d
            k = in_precision_of(v, step + i + 1)
            p = p - lr * (m / (1 - b1**k)) / (root(v / (1 - b2**k)) + self.eps)
        return p, [m, v]


@register("optimizer", "adamw")
@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay acts on φ directly, outside the moments."""

    original: ClassVar[type[torch.optim.Optimizer]] = torch.optim.AdamW
    entrywise: ClassVar[bool] = True
    weight_decay: Rate = 1e-2
    decoupled_weight_decay: bool = field(default=True, init=False, repr=False)


@register("optimizer", "rmsprop")
@dataclass(frozen=True)
class RMSprop:
    """v ← αv + (1−α)ĝ²,  b ← μb + ĝ/(√v + ε),  φ ← φ − ηb  with  ĝ = g + ωφ."""

    original: ClassVar[type[torch.optim.Optimizer]] = torch.optim.RMSprop
    entrywise: ClassVar[bool] = True
    lr: Rate = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: Rate = 0.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        require_rates(lr=self.lr, eps=self.eps, weight_decay=self.weight_decay, momentum=self.momentum)
        require_fractions(alpha=(self.alpha,))

    def init(self, params: Tree) -> State:
        return State(params, (zeros_like(params), *([zeros_like(params)] if self.momentum else [])))

    def advance(self, state: State, grad: Tree, meta: Tree, steps: int) -> State:
        return _leaf_by_leaf(self._move, state, grad, meta, steps, (self.lr, self.weight_decay))

    def _move(self, p: Tensor, memory: list[Tensor], g: Tensor, rates: "Rates", step: int) -> "Moved":
        v, *buffer = memory
        for lr, weight_decay in rates:
            d = g + weight_decay * p
            v = self.alpha * v + (1 - self.alpha) * d * d
            d = d / (root(v) + self.eps)
            buffer = [self.momentum * b + d for b in buffer]
            p = p - lr * (buffer[0] if buffer else d)
        return p, [v, *buffer]


@dataclass(frozen=True)
class StepFunction:
    """A user's own optimizer: `step(params, memory, grad, meta, t) -> (params, memory)`, differentiable in each."""

    step: Callable[[Tree, Tree, Tree, Tree, int], tuple[Tree, Tree]]
    memory: Callable[[Tree], Tree] = lambda params: ()

    def __post_init__(self) -> None:
        require_takes(self.step, "the step of a StepFunction", "params, memory, grad, meta, t")
        require_takes(self.memory, "the memory of a StepFunction", "params", "Give a function of φ.")

    def init(self, params: Tree) -> State:
        return State(params, require_memory(self.memory(params)))

    def advance(self, state: State, grad: Tree, meta: Tree, steps: int) -> State:
        for _ in range(steps):
            moved = self.step(state.params, state.memory, grad, meta, state.step)
            state = State(*require_moved(moved, state.params), state.step + 1)
        return state


def is_linear(dynamics: InnerOptimizer, state: State, meta: Tree, steps: int) -> bool:
    """As its class says, see `SGD.is_linear`; what a wrapper passes on is said of another"""
    declared = getattr(type(dynamics), "is_linear", None)
    return declared is not None and bool(declared(dynamics, state, meta, steps))


# ---- shared by all of them

Rates = list[tuple[Any, ...]]  # for one parameter: the rates of each step
Moved = tuple[Any, list[Any]]  # one parameter and its memory


def _leaf_by_leaf(
    move: Callable[..., Moved], state: State, grad: Tree, meta: Tree, steps: int, rates: Sequence[Rate]
) -> State:
    """Apply `move(p, memory, g, rates of each step, step)` to every parameter; memory is a tuple of such trees."""
    params, spec = tree_flatten(state.params)
    memories = [tree_leaves(alike(tree, state.params, "memory")) for tree in state.memory]
    table = [[rates_of_leaves(rate_at(r, meta, state.step + i), state.params) for r in rates] for i in range(steps)]
    moved = [
        move(p, [m[j] for m in memories], g, [tuple(rate[j] for rate in row) for row in table], state.step)
        for j, (p, g) in enumerate(zip(params, tree_leaves(filled(grad, state.params)), strict=True))
    ]
    memory = tuple(tree_unflatten(list(column), spec) for column in zip(*(m for _, m in moved), strict=True))
    after = [kept_in_shape(new, p) for p, (new, _) in zip(params, moved, strict=True)]
    return State(tree_unflatten(after, spec), memory, state.step + steps)


def _combination(terms: list[tuple[Tensor, float]]) -> Tensor:
    """Σ coefficient · tensor, in one pass for each term"""
    (tensor, coefficient), *rest = terms
    total = tensor if coefficient == 1 else coefficient * tensor
    for tensor, coefficient in rest:
        total = torch.add(total, tensor, alpha=coefficient)
    return total


def in_precision_of(v: Tensor, step: Any) -> Any:
    """A count of steps; of a whole number in a tensor, powers would be float32"""
    return step.to(v.dtype) if isinstance(step, Tensor) else step


def root(v: Tensor) -> Tensor:
    """√v with slope 0 at v = 0, where the true slope is infinite and would make every meta-gradient NaN"""
    positive = v > 0
    return torch.where(positive, torch.where(positive, v, 1.0).sqrt(), 0.0)
