"""Linear systems with a matrix known only by its products: Hx = b."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from metastep.core.trees import Tree, add, add_scaled, dot, scale, zeros_like
from metastep.errors import require_positive

Solver = Callable[[Callable[[Tree], Tree], Tree], Tree]  # (v ↦ Hv, b) -> x with Hx ≈ b


@dataclass(frozen=True)
class ConjugateGradient:
    """Stops when the residual is at rounding level, or when pᵀHp ≤ 0: the quadratic has no minimum along p."""

    steps: int
    dot: Callable[[Tree, Tree], Tensor] = dot  # of several systems in one tree, a column with one number for each

    def __call__(self, matvec: Callable[[Tree], Tree], b: Tree) -> Tree:
        x, r, p, rr = zeros_like(b), b, b, self.dot(b, b)
        goes_on, least = rr > 0, torch.finfo(rr.dtype).eps ** 2 * rr
        for _ in range(self.steps):
            hp = matvec(p)
            bend = self.dot(p, hp)
            goes_on = goes_on & (rr > least) & (bend > 0)
            alpha = _ratio(rr, bend, goes_on)
            x, r = add_scaled(x, alpha, p), add_scaled(r, -alpha, hp)
            before, rr = rr, self.dot(r, r)
            p = add_scaled(r, _ratio(rr, before, goes_on), p)
        return x


def conjugate_gradient(steps: int = 5) -> ConjugateGradient:
    require_positive(steps=steps)
    return ConjugateGradient(steps)


def neumann(steps: int, rate: float) -> Solver:
    """H⁻¹ ≈ rate · Σ_{i ≤ steps} (I − rate·H)ⁱ, for rate < 2/‖H‖"""
    require_positive(steps=steps, rate=rate)

    def solve(matvec: Callable[[Tree], Tree], b: Tree) -> Tree:
        term = total = b
        for _ in range(steps):
            term = add_scaled(term, -rate, matvec(term))
            total = add(total, term)
        return scale(rate, total)

    return solve


def _ratio(a: Tensor, b: Tensor, where: Tensor) -> Tensor:
    """a / b there, and 0 elsewhere: what has stopped stays as it is"""
    return torch.where(where, a / torch.where(where, b, 1.0), 0.0)
