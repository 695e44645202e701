"""Second-order products from first derivatives, or from losses alone.

Each is a curvature, as those of `curvature` are: a function (window, params, meta, direction) -> (h, c).
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from metastep.core.counting import count_gradient
from metastep.core.derivatives import grad
from metastep.core.guards import Hidden, guarded
from metastep.core.options import Bound, Described
from metastep.core.registry import register
from metastep.core.trees import Tree, add_scaled, dot, map_tree, normal_like, scale, subtract, zeros_like
from metastep.core.windows import Window


@register("curvature", "central_difference")
@dataclass(frozen=True)
class CentralDifference(Described):
    """Return [∇L(φ+εd) − ∇L(φ−εd)] / 2ε of the joint gradient, from first derivatives alone (HF-MAML).

    Args:
        delta: The length ‖εd‖ of the difference, whatever the size of the direction d.

    Raises:
        MetastepError: `delta` is not above 0.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> window = ms.Window(lambda p, meta, batch: meta * p**2, None, 1)
        >>> product = ms.curvature.CentralDifference(delta=0.5)
        >>> print(*product(window, torch.tensor(2.0), torch.tensor(1.0), torch.tensor(1.0)))
        tensor(2.) tensor(4.)
    """

    delta: Annotated[float, Bound(gt=0)] = 0.1

    def __call__(self, window: Window, params: Tree, meta: Tree, direction: Tree) -> tuple[Tree, Tree]:
        length = dot(direction, direction).sqrt()
        step = self.delta / torch.where(length > 0, length, 1.0)
        return scale(1 / (2 * step), _change(window, params, meta, scale(step, direction)))  # type: ignore[no-any-return]


@register("curvature", "gaussian_smoothing")
@dataclass(frozen=True)
class GaussianSmoothing(Described):
    """Return E[(∇L(φ+σu) − ∇L(φ−σu)) / 2σ · ⟨u, d⟩], u ~ N(0, I), of the joint gradient (GGS-MAML).

    Args:
        samples: Random directions, each with its mirror image.
        sigma: How far they go.

    Raises:
        MetastepError: `samples` or `sigma` is not above 0.

    Example:
        >>> import metastep as ms
        >>> ms.curvature.GaussianSmoothing(samples=4).sigma
        0.01
    """

    samples: Annotated[int, Bound(ge=1)] = 8
    sigma: Annotated[float, Bound(gt=0)] = 1e-2

    def __call__(self, window: Window, params: Tree, meta: Tree, direction: Tree) -> tuple[Tree, Tree]:
        total, share = (zeros_like(params), zeros_like(meta)), 1 / (2 * self.sigma * self.samples)
        for _ in range(self.samples):
            u = normal_like(params)
            change = _change(window, params, meta, scale(self.sigma, u))
            total = add_scaled(total, share * dot(u, direction), change)
        return total


@register("curvature", "zeroth_order")
@dataclass(frozen=True)
class ZerothOrder(Described):
    """Return E[(L(φ+σu) + L(φ−σu) − 2L(φ)) / 2σ² · (uuᵀ − I)] d, u ~ N(0, I), from losses alone (ES-MAML).

    Args:
        samples: Random directions, each with its mirror image.
        sigma: How far they go.

    Raises:
        MetastepError: `samples` or `sigma` is not above 0.

    Example:
        >>> import metastep as ms
        >>> ms.curvature.ZerothOrder(samples=4).sigma
        0.1
    """

    samples: Annotated[int, Bound(ge=1)] = 8
    sigma: Annotated[float, Bound(gt=0)] = 1e-1

    def __call__(self, window: Window, params: Tree, meta: Tree, direction: Tree) -> tuple[Tree, Tree]:
        hidden = Hidden("zeroth-order curvature (ES-MAML)")
        total, here = zeros_like(params), window.loss(params, hidden, window.batch)
        for _ in range(self.samples):
            u = normal_like(params)
            ahead, behind = (
                window.loss(add_scaled(params, s, u), hidden, window.batch) for s in (self.sigma, -self.sigma)
            )
            bend, along = (ahead + behind - 2 * here) / (2 * self.sigma**2 * self.samples), dot(u, direction)
            total = map_tree(lambda t, u, d, b=bend, a=along: t + b * (a * u - d), total, u, direction)
        return total, zeros_like(meta)


def _change(window: Window, params: Tree, meta: Tree, way: Tree) -> Tree:
    """Return how the joint gradient (∂L/∂φ, ∂L/∂θ) changes from φ − way to φ + way."""

    def joint(params: Tree) -> Tree:
        count_gradient()
        return grad(guarded(window.loss), argnums=(0, 1))(params, meta, window.batch)

    ahead, behind = (joint(add_scaled(params, sign, way)) for sign in (1, -1))
    return subtract(ahead, behind)
