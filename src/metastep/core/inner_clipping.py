"""Clip the gradient before an inner optimizer uses it, with the exact derivative through the clip."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from metastep.core.checks import require_dynamics, require_rate
from metastep.core.entrywise import InnerOptimizer, State, root, with_lr
from metastep.core.options import Bound, Described, require_number
from metastep.core.rates import Rate, rate_at, rates_of_leaves
from metastep.core.trees import Tree, dot, filled, is_number, map_tree, tree_flatten, tree_unflatten
from metastep.errors import MetastepError


def clipped(inner: InnerOptimizer, *, norm: Any = None, value: Any = None) -> "Clipped":
    """Return an inner optimizer that clips its gradient first, as `torch.nn.utils` does.

    To clip by both, clip twice: `clipped(clipped(inner, norm=1.0), value=0.1)` clips by value first.

    Args:
        inner: The optimizer that gets the clipped gradient.
        norm: The largest norm over all parameters. A longer gradient is scaled down.
        value: The largest size of each entry.

    Returns:
        An inner optimizer. A limit may be a number, a tensor or a function of (meta, step); `value` may be a tree.

    Raises:
        MetastepError: There is no limit or there are two, or one is not above 0.

    Example:
        >>> import metastep as ms
        >>> ms.optimizers.clipped(ms.Adam(lr=0.01), norm=1.0)
        clipped(Adam(lr=0.01), norm=1.0)
    """
    return Clipped(inner, norm, value)


@dataclass(frozen=True, repr=False)
class Clipped(Described):
    """An inner optimizer whose gradient is clipped."""

    inner: Any
    norm: Rate = None
    value: Rate = None

    def __post_init__(self) -> None:
        require_dynamics(self.inner)
        if (self.norm is None) == (self.value is None):
            raise MetastepError(
                f"clipped: norm = {self.norm} and value = {self.value}. Give exactly one of them. To clip by both, "
                "clip twice: clipped(clipped(inner, norm=1.0), value=0.1)."
            )
        require_number(self._limit, Bound(gt=0), f"clipped: {self._by}")

    def __repr__(self) -> str:
        return f"clipped({self.inner!r}, {self._by}={self._limit!r})"

    @property
    def _by(self) -> str:
        return "value" if self.norm is None else "norm"

    @property
    def _limit(self) -> Any:
        return self.value if self.norm is None else self.norm

    @property
    def lr(self) -> Rate:
        """The learning rate of the optimizer inside, which Meta-SGD learns."""
        require_rate(self.inner)
        return self.inner.lr

    def with_lr(self, lr: Rate) -> "Clipped":
        """Return the same with another learning rate."""
        return replace(self, inner=with_lr(self.inner, lr))

    @property
    def weight_decay(self) -> Rate:
        """Return that of the optimizer inside."""
        return getattr(self.inner, "weight_decay", 0.0)

    def init(self, params: Tree) -> State:
        return self.inner.init(params)  # type: ignore[no-any-return]

    def advance(self, state: State, grad: Tree, meta: Tree, steps: int) -> State:
        grad = filled(grad, state.params)
        if not callable(self._limit):
            return self.inner.advance(state, self._clip(grad, self._limit), meta, steps)  # type: ignore[no-any-return]
        for _ in range(steps):
            limit = rate_at(self._limit, meta, state.step, f"clipped: {self._by}", Bound(gt=0))
            state = self.inner.advance(state, self._clip(grad, limit), meta, 1)
        return state

    def _clip(self, grad: Tree, limit: Any) -> Tree:
        return by_value(grad, limit) if self.norm is None else by_norm(grad, limit)


def by_norm(grad: Tree, limit: Any) -> Tree:
    """Scale down to a norm over all parameters."""
    if not (is_number(limit) or (isinstance(limit, Tensor) and limit.dim() == 0)):
        raise MetastepError(f"clipped: norm = {limit!r} must be one number: it bounds the norm over all parameters.")
    return shortened(grad, root(dot(grad, grad)), limit)


def shortened(grad: Tree, length: Tensor, limit: Any) -> Tree:
    """Scale by min(1, limit / (length + 1e-6)), as torch.nn.utils.clip_grad_norm_ does."""
    factor = (limit / (length + 1e-6)).clamp(max=1.0)
    return map_tree(lambda g: g * factor.to(g.dtype), grad)


def by_value(grad: Tree, limit: Any) -> Tree:
    """Clamp every entry to [−limit, limit]."""
    leaves, spec = tree_flatten(grad)
    limits = rates_of_leaves(limit, grad)
    return tree_unflatten([_clamped(g, bound) for g, bound in zip(leaves, limits, strict=True)], spec)


def _clamped(g: Tensor, limit: Any) -> Tensor:
    if is_number(limit):
        return g.clamp(-limit, limit)
    return torch.minimum(torch.maximum(g, -limit.to(g.dtype)), limit.to(g.dtype))
