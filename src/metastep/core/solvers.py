"""Solve Hx = b for a matrix H that is known only by its products."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from metastep.core.options import Bound, require_options, written
from metastep.core.registry import register
from metastep.core.trees import Tree, add, dot, map_tree, scale, subtract, zeros_like

__all__ = ["ConjugateGradient", "Neumann", "Solver"]

Solver = Callable[..., Tree]
"""A function (v ↦ Hv, b) -> x with Hx ≈ b. One that can continue from an earlier solution also takes `start`."""


@register("solver", "conjugate_gradient")
@dataclass(frozen=True, repr=False)
class ConjugateGradient:
    """Solve by conjugate gradients.

    A system stops when its residual is at rounding level, or when pᵀHp ≤ 0: then the quadratic has no minimum along p.

    Args:
        steps: Products with H at most.
        dot: The inner product. For several systems in one tree it gives a column with one number for each.

    Raises:
        MetastepError: `steps` is not a whole number above 0.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> solve = ms.solvers.ConjugateGradient(steps=2)
        >>> print(solve(lambda v: 2 * v, torch.tensor([2.0, 4.0])))
        tensor([1., 2.])
    """

    steps: Annotated[int, Bound(ge=1)] = 5
    dot: Callable[[Tree, Tree], Tensor] = dot

    def __post_init__(self) -> None:
        require_options(self)

    def __repr__(self) -> str:
        return written(self)

    def __call__(self, matvec: Callable[[Tree], Tree], b: Tree, start: Tree = None) -> Tree:
        x, r = (zeros_like(b), b) if start is None else (start, subtract(b, matvec(start)))
        p, rr = r, self.dot(r, r)
        zero = torch.zeros_like(rr)
        goes_on, least = rr > 0, torch.finfo(rr.dtype).eps ** 2 * (rr if start is None else self.dot(b, b))
        for _ in range(self.steps):
            hp = matvec(p)
            bend = self.dot(p, hp)
            goes_on = goes_on & (rr > least) & (bend > 0)
            alpha = (rr / bend).where(goes_on, zero)  # 0 where a system has stopped
            x, r = plus(x, alpha, p), plus(r, -alpha, hp)
            before, rr = rr, self.dot(r, r)
            p = plus(r, (rr / before).where(goes_on, zero), p)
        return x


@register("solver", "neumann")
@dataclass(frozen=True)
class Neumann:
    """Solve by the Neumann series H⁻¹ ≈ rate · Σ_{i ≤ steps} (I − rate·H)ⁱ.

    Args:
        steps: Products with H.
        rate: The step length. The series converges if it is below 2/‖H‖.

    Raises:
        MetastepError: `steps` or `rate` is not above 0.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> solve = ms.solvers.Neumann(steps=20, rate=0.4)
        >>> print(solve(lambda v: 2 * v, torch.tensor([2.0, 4.0])))
        tensor([1.0000, 2.0000])
    """

    steps: Annotated[int, Bound(ge=1)]
    rate: Annotated[float, Bound(gt=0)]

    def __post_init__(self) -> None:
        require_options(self)

    def __call__(self, matvec: Callable[[Tree], Tree], b: Tree, start: Tree = None) -> Tree:
        term = total = b if start is None else subtract(b, matvec(start))
        for _ in range(self.steps):
            term = plus(term, -self.rate, matvec(term))
            total = add(total, term)
        found = scale(self.rate, total)
        return found if start is None else add(start, found)


def plus(x: Tree, factor: float | Tensor, along: Tree) -> Tree:
    """Return x + factor · along, in one pass over the numbers. `add_scaled` also serves what is no float, in two."""

    def one(a: Tensor, b: Tensor) -> Tensor:
        return torch.addcmul(a, factor, b) if isinstance(factor, Tensor) else torch.add(a, b, alpha=factor)

    return one(x, along) if isinstance(x, Tensor) else map_tree(one, x, along)
