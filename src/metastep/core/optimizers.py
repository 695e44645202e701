"""Inner optimizers as pure functions: Φ of the paper, applied `steps` times to one shared gradient.

An inner optimizer has `init(params)`, the state before the first step, and `advance(state, grad, meta, steps)`, the
state after `steps` steps that all use `grad`. Weight decay, moments and schedules still move at every step, so that
only the gradient is estimated. Each one equals its `torch.optim` original when `steps` is 1 and the gradient is new.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from metastep.core.checks import require_memory, require_moved, require_takes
from metastep.core.entrywise import (
    Entrywise,
    InnerOptimizer,
    Moved,
    Rates,
    State,
    combination,
    in_double,
    is_linear,
    root,
)
from metastep.core.from_torch import from_torch
from metastep.core.inner_clipping import clipped
from metastep.core.options import Bound
from metastep.core.rates import rate_at
from metastep.core.registry import register
from metastep.core.torch_originals import to_torch
from metastep.core.trees import Tree, is_number, is_zero, tree_leaves, zeros_like
from metastep.errors import MetastepError

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "InnerOptimizer",
    "RMSprop",
    "Rate",
    "State",
    "StepFunction",
    "clipped",
    "from_torch",
    "is_linear",
    "to_torch",
]

Rate = Annotated[Any, Bound(ge=0)]
"""A number, a tensor, a tree with one of them per parameter, or a function of (meta, step) that returns one."""
Share = Annotated[Any, Bound(ge=0, lt=1)]


@register("optimizer", "sgd")
@dataclass(frozen=True, repr=False)
class SGD(Entrywise):
    """Move by v ← μv + (1−τ)ĝ,  φ ← φ − ηv  with  ĝ = g + ωφ;  the first step sets v = ĝ.

    Nesterov: φ ← φ − η(ĝ + μv). Where μ is the number 0, v = ĝ too, as torch.optim has it for a group without momentum.

    Args:
        lr: η.
        momentum: μ.
        dampening: τ.
        nesterov: Look ahead by one more step of the velocity.
        weight_decay: ω.

    Example:
        >>> import metastep as ms
        >>> ms.SGD(lr=0.1, momentum=0.9)
        SGD(lr=0.1, momentum=0.9)
    """

    original: ClassVar[type[torch.optim.Optimizer]] = torch.optim.SGD
    slots = ("momentum_buffer",)
    entrywise = True
    numbers = ("lr", "momentum", "weight_decay", "dampening")
    lr: Rate
    momentum: Rate = 0.0
    dampening: Rate = 0.0
    nesterov: bool = False
    weight_decay: Rate = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not (self._remembers and is_zero(self.dampening)):
            raise MetastepError("nesterov=True needs momentum above 0 and dampening 0, as in torch.optim.SGD.")

    @property
    def _remembers(self) -> bool:
        return not is_zero(self.momentum)

    def init(self, params: Tree) -> State:
        return State(params)  # as in torch.optim, the first step makes the velocity

    def is_linear(self, state: State, meta: Tree, steps: int) -> bool:
        """Whether `advance` is linear in state and gradient, so that its pullback needs the values of neither."""
        # Only functions can hold θ.
        given = (rate_at(r, meta, state.step + i) for _, r, _ in self.rates if callable(r) for i in range(steps))
        numbers = all(is_number(leaf) for rate in given for leaf in tree_leaves(rate))
        # A subclass with steps of its own says so itself.
        return numbers and all(getattr(type(self), n) is getattr(SGD, n) for n in ("advance", "_move", "_follow"))

    def _move(self, p: Tensor, memory: list[Tensor], g: Tensor, rates: Rates, step: Any) -> Moved:
        if not all(is_number(rate) for row in rates for rate in row):
            return self._follow(p, memory, g, rates)
        # (φ, v, g) enter linearly: follow their unit vectors, and n steps cost what one does.
        still = [0.0 for _ in memory]
        units = [(1.0, still, 0.0), (0.0, still, 1.0), *((0.0, [1.0], 0.0) for _ in memory)]
        columns = [(to_p, *to_v) for to_p, to_v in (self._follow(*unit, rates) for unit in units)]
        moved, *velocity = self._combine([p, g, *memory], list(zip(*columns, strict=True)))
        return moved, velocity

    def _combine(self, inputs: Sequence[Tensor], rows: Sequence[Sequence[float]]) -> Sequence[Tensor]:
        return [combination(list(zip(inputs, row, strict=True))) for row in rows]

    def _follow(self, p: Any, memory: list[Any], g: Any, rates: Rates) -> Moved:
        for lr, momentum, weight_decay, dampening in rates:
            d = g + weight_decay * p
            if self._remembers:
                still = not memory or is_zero(momentum)
                v = d if still else momentum * memory[0] + (1 - dampening) * d
                d, memory = d + momentum * v if self.nesterov else v, [v]
            p = p - lr * d
        return p, memory


@register("optimizer", "adam")
@dataclass(frozen=True, repr=False)
class Adam(Entrywise):
    """Move by m ← β₁m + (1−β₁)ĝ,  v ← β₂v + (1−β₂)ĝ²,  φ ← φ − η m̂ / (√v̂ + ε)  with  ĝ = g + ωφ.

    √v has slope 0 at v = 0.

    Args:
        lr: η.
        betas: (β₁, β₂).
        eps: ε.
        weight_decay: ω.

    Example:
        >>> import metastep as ms
        >>> ms.Adam(lr=0.01, betas=(0.9, lambda meta, step: 1 - 0.1 / (step + 1))).lr
        0.01
    """

    original: ClassVar[type[torch.optim.Optimizer]] = torch.optim.Adam
    slots = ("exp_avg", "exp_avg_sq")
    entrywise = True
    keeps = "moments"
    numbers = ("lr", "betas", "eps", "weight_decay")
    decoupled_weight_decay = False
    lr: Rate = 1e-3
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Rate = 1e-8
    weight_decay: Rate = 0.0

    def init(self, params: Tree) -> State:
        return State(params, (zeros_like(params), zeros_like(params)))

    def _move(self, p: Tensor, memory: list[Tensor], g: Tensor, rates: Rates, step: Any) -> Moved:
        m, v = memory
        for i, (lr, b1, b2, eps, weight_decay) in enumerate(rates):
            p, d = (p - lr * weight_decay * p, g) if self.decoupled_weight_decay else (p, g + weight_decay * p)
            m = b1 * m + (1 - b1) * d
            v = b2 * v + (1 - b2) * d * d
            k = in_double(step + i + 1)
            p = p - lr * (m / (1 - b1**k)) / (root(v / (1 - b2**k)) + eps)
        return p, [m, v]


@register("optimizer", "adamw")
@dataclass(frozen=True, repr=False)
class AdamW(Adam):
    """Move as Adam does, with φ ← φ − ηωφ for its weight decay, outside the moments.

    Args:
        lr: η.
        betas: (β₁, β₂).
        eps: ε.
        weight_decay: ω.

    Example:
        >>> import metastep as ms
        >>> ms.AdamW(lr=0.01)
        AdamW(lr=0.01)
    """

    original: ClassVar[type[torch.optim.Optimizer]] = torch.optim.AdamW
    entrywise = True
    decoupled_weight_decay = True
    weight_decay: Rate = 1e-2


@register("optimizer", "rmsprop")
@dataclass(frozen=True, repr=False)
class RMSprop(Entrywise):
    """Move by v ← αv + (1−α)ĝ²,  b ← μb + ĝ/(√v + ε),  φ ← φ − ηb  with  ĝ = g + ωφ.

    √v has slope 0 at v = 0.

    Args:
        lr: η.
        alpha: α.
        eps: ε.
        weight_decay: ω.
        momentum: μ.

    Example:
        >>> import metastep as ms
        >>> ms.RMSprop(lr=0.01, momentum=0.9)
        RMSprop(momentum=0.9)
    """

    original: ClassVar[type[torch.optim.Optimizer]] = torch.optim.RMSprop
    slots = ("square_avg", "momentum_buffer")
    entrywise = True
    keeps = "memory"
    numbers = ("lr", "alpha", "eps", "weight_decay", "momentum")
    lr: Rate = 1e-2
    alpha: Share = 0.99
    eps: Rate = 1e-8
    weight_decay: Rate = 0.0
    momentum: Rate = 0.0

    def init(self, params: Tree) -> State:
        buffer = () if is_zero(self.momentum) else (zeros_like(params),)
        return State(params, (zeros_like(params), *buffer))

    def _move(self, p: Tensor, memory: list[Tensor], g: Tensor, rates: Rates, step: Any) -> Moved:
        v, *buffer = memory
        for lr, alpha, eps, weight_decay, momentum in rates:
            d = g + weight_decay * p
            v = alpha * v + (1 - alpha) * d * d
            d = d / (root(v) + eps)
            buffer = [momentum * b + d for b in buffer]
            p = p - lr * (buffer[0] if buffer else d)
        return p, [v, *buffer]


@dataclass(frozen=True)
class StepFunction:
    """Move by a function of your own, differentiable in each of its arguments.

    Args:
        step: A function (params, memory, grad, meta, t) -> (params, memory), for the step t, counted from 0.
        memory: A function of φ that gives the first memory, a tree of floating-point tensors.

    Raises:
        MetastepError: A function takes other arguments.

    Example:
        >>> import metastep as ms
        >>> def sign_step(params, memory, grad, meta, t):
        ...     return {name: p - 0.01 * grad[name].sign() for name, p in params.items()}, memory
        >>> inner = ms.StepFunction(sign_step)
    """

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
