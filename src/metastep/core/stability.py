"""How long a window may be before the inner loop is unstable, by the curvature of the inner loss.

Along an eigenvector of the Hessian, with eigenvalue λ, a window of SGD with momentum maps (φ, v) by a 2×2 matrix. It is
stable if no eigenvalue of this companion matrix is larger than 1. Adam and RMSprop are taken as SGD on the loss that
their own second moment preconditions.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metastep.core.optimizers import SGD, Adam, RMSprop, State
from metastep.core.trees import Tree, from_vector, map_tree, to_vector

LONGEST = 64
"""The longest window that is looked for."""
PARTS = 100
MARGIN = 1.05  # a few products find somewhat less than the largest curvature, and it may still rise

Row = tuple[float, ...]  # coefficients of φ, v and g
Product = Callable[[Tensor], Tensor]


@lru_cache
def coefficients(inner: SGD, remembers: bool, steps: int) -> tuple[Row, Row | None]:
    """Return how φ and v after some steps depend on φ, v and the gradient g, by following unit vectors."""
    rates = [tuple(rate for _, rate, _ in inner.rates)] * steps
    columns = [
        inner._follow(p, [v] if remembers else [], g, rates)
        for p, v, g in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    ]
    velocity = tuple(memory[0] for _, memory in columns) if columns[0][1] else None
    return tuple(moved for moved, _ in columns), velocity


def radius(inner: SGD, steps: int, curvature: float) -> float:
    """Return the largest absolute eigenvalue of a window's map of (φ, v), where the gradient is curvature · φ."""
    (a, b, c), velocity = coefficients(inner, inner._remembers, steps)
    if velocity is None:
        return abs(a + c * curvature)
    d, e, f = velocity
    trace = a + c * curvature + e
    determinant = (a + c * curvature) * e - b * (d + f * curvature)
    inside = trace**2 / 4 - determinant
    return math.sqrt(determinant) if inside < 0 else abs(trace / 2) + math.sqrt(inside)


def is_stable(inner: SGD, steps: int, curvature: float) -> bool:
    """Return whether a window shrinks what it moves, for every curvature up to this one."""
    return all(radius(inner, steps, MARGIN * curvature * k / PARTS) <= 1 for k in range(1, PARTS + 1))


def longest_stable(inner: SGD, curvature: float) -> int:
    """Return the longest stable window: 0 if single steps are not, and at most `LONGEST`."""
    unstable = (n for n in range(1, LONGEST + 1) if not is_stable(inner, n, curvature))
    return LONGEST if curvature <= 0 else next(unstable, LONGEST + 1) - 1


class Rule(NamedTuple):
    """Say how an optimizer is judged: as which SGD, and what preconditions the loss, by its state."""

    like: SGD
    scale: Callable[[State], Tree] | None


def rule_of(inner: Any) -> Rule | None:
    """Return how the windows of an inner optimizer are judged, or None if there is no rule for it."""
    if not getattr(inner, "has_plain_numbers", False):
        return None
    if type(inner) is SGD:
        return Rule(inner, None)
    if isinstance(inner, Adam):
        mean, square = inner.betas

        def of_adam(state: State) -> Tree:
            return _scale(state.memory[1], 1 - square**state.step, inner.eps)

        return Rule(SGD(inner.lr * (1 - mean), momentum=mean), of_adam)
    if isinstance(inner, RMSprop):
        return Rule(SGD(inner.lr, momentum=inner.momentum), lambda state: _scale(state.memory[0], 1.0, inner.eps))
    return None


def _scale(squares: Tree, correction: float, eps: float) -> Tree:
    """Return the divisor of a step, at least a thousandth of the mean.

    Where a gradient is all rounding, as that of a bias before a BatchNorm, an entry would count as endlessly curved.
    """
    roots = to_vector(map_tree(lambda v: (v / correction).sqrt() + eps, squares))
    return from_vector(roots.clamp_min(1e-3 * float(roots.square().mean().sqrt())), squares)


def largest_curvature(product: Callable[[Tree], Tree], start: Tree, scale: Tree | None, products: int) -> float:
    """Return the largest eigenvalue of a Hessian, by as many products with it as are allowed.

    The Lanczos iteration contains the power iteration, and converges faster. It starts from the gradient, which leans
    towards the largest eigenvalues. What it finds is at most the true one.

    Args:
        product: The Hessian times a tree.
        start: Where the iteration starts: the gradient.
        scale: What preconditions the Hessian, entry by entry; nothing if None.
        products: How many products may be taken.
    """
    root = None if scale is None else to_vector(scale).sqrt()

    def preconditioned(v: Tensor) -> Tensor:
        h = to_vector(product(from_vector(v if root is None else v / root, start)))
        return h if root is None else h / root

    first = to_vector(start)
    return lanczos(preconditioned, first if root is None else first / root, products)


def lanczos(product: Product, start: Tensor, products: int) -> float:
    """Return the largest eigenvalue that the Krylov space of `start` shows."""
    basis, diagonal, outer = [start / start.norm().clamp_min(torch.finfo(start.dtype).tiny)], list[float](), [0.0]
    for _ in range(products):
        w = product(basis[-1])
        diagonal.append(float(w @ basis[-1]))
        for _again in range(2):  # rounding would bring back what was found before
            for q in basis:
                w = w - (w @ q) * q
        length = float(w.norm())
        if not length > 1e-6 * max(map(abs, diagonal)):
            break
        outer.append(length)
        basis.append(w / length)
    if not all(map(math.isfinite, (*diagonal, *outer))):
        return math.inf
    size = len(diagonal)
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    for i in range(1, size):
        matrix[i, i - 1] = matrix[i - 1, i] = outer[i]
    return float(torch.linalg.eigvalsh(matrix)[-1])
