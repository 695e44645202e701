"""Second-order products: pull a direction back through the inner gradient g = ∂L/∂φ.

Every curvature is a function (window, params, meta, direction) -> (h, c) with h = (∂²L/∂φ²)·direction and
c = (∂²L/∂θ∂φ)·direction. This is the only second-order work in the subject, and where the methods differ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch

from metastep.core.constants import with_constants
from metastep.core.counting import count_product
from metastep.core.derivatives import grad, vjp
from metastep.core.hidden import Hidden
from metastep.core.options import Bound, require_options
from metastep.core.registry import register
from metastep.core.trees import Tree, add_scaled, dot, map_tree, normal_like, scale, split_floats, subtract, zeros_like
from metastep.core.windows import Loss, Window, joint_gradient, scalar

__all__ = ["CentralDifference", "Curvature", "GaussianSmoothing", "ZerothOrder", "exact", "exact_forward"]

Curvature = Callable[[Window, Tree, Tree, Tree], tuple[Tree, Tree]]


@register("curvature", "exact")
def exact(window: Window, params: Tree, meta: Tree, direction: Tree) -> tuple[Tree, Tree]:
    """Return the exact products by reverse over reverse, or by what the loss brings.

    Args:
        window: Whose loss is differentiated.
        params: φ.
        meta: θ.
        direction: What is multiplied, a tree as φ is.

    Returns:
        The pair (∂²L/∂φ² · direction, ∂²L/∂θ∂φ · direction).

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> window = ms.Window(lambda p, meta, batch: meta * p**3, None, 1)
        >>> print(*ms.curvature.exact(window, torch.tensor(2.0), torch.tensor(1.0), torch.tensor(1.0)))
        tensor(12.) tensor(12.)
    """
    count_product()
    product = getattr(window.loss, "product_by_hand", lambda *at: reverse_over_reverse(window.loss, *at))
    return product(params, meta, window.batch, direction)


def reverse_over_reverse(loss: Loss, params: Tree, meta: Tree, batch: Any, direction: Tree) -> tuple[Tree, Tree]:
    """What ∂L/∂φ hands back to φ and θ along a direction"""
    gradient = grad(with_constants(scalar(loss)))
    return vjp(lambda p, m: gradient(p, m, batch), params, meta)[1](direction)  # type: ignore[no-any-return]


@register("curvature", "exact_forward")
def exact_forward(window: Window, params: Tree, meta: Tree, direction: Tree) -> tuple[Tree, Tree]:
    """Return the exact products by forward over reverse: the derivative of (∂L/∂φ, ∂L/∂θ) along (direction, 0).

    Args:
        window: Whose loss is differentiated.
        params: φ.
        meta: θ.
        direction: What is multiplied, a tree as φ is.

    Returns:
        The pair (∂²L/∂φ² · direction, ∂²L/∂θ∂φ · direction).

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> window = ms.Window(lambda p, meta, batch: meta * p**3, None, 1)
        >>> print(*ms.curvature.exact_forward(window, torch.tensor(2.0), torch.tensor(1.0), torch.tensor(1.0)))
        tensor(12.) tensor(12.)
    """
    count_product()
    gradients = torch.func.grad(with_constants(scalar(window.loss)), argnums=(0, 1))
    # The batch gets a tangent of zeros: without any, mse_loss fails, and so does a compiled matmul on a GPU.
    numbers, rebuild = split_floats(window.batch)
    still = zeros_like(numbers)
    along = torch.func.jvp(lambda p, x: gradients(p, meta, rebuild(x)), (params, numbers), (direction, still))
    return along[1]  # type: ignore[no-any-return]


@register("curvature", "central_difference")
@dataclass(frozen=True)
class CentralDifference:
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

    def __post_init__(self) -> None:
        require_options(self)

    def __call__(self, window: Window, params: Tree, meta: Tree, direction: Tree) -> tuple[Tree, Tree]:
        length = dot(direction, direction).sqrt()
        step = self.delta / torch.where(length > 0, length, 1.0)
        return scale(1 / (2 * step), _change(window, params, meta, scale(step, direction)))  # type: ignore[no-any-return]


@register("curvature", "gaussian_smoothing")
@dataclass(frozen=True)
class GaussianSmoothing:
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

    def __post_init__(self) -> None:
        require_options(self)

    def __call__(self, window: Window, params: Tree, meta: Tree, direction: Tree) -> tuple[Tree, Tree]:
        total, share = (zeros_like(params), zeros_like(meta)), 1 / (2 * self.sigma * self.samples)
        for _ in range(self.samples):
            u = normal_like(params)
            change = _change(window, params, meta, scale(self.sigma, u))
            total = add_scaled(total, share * dot(u, direction), change)
        return total


def _change(window: Window, params: Tree, meta: Tree, way: Tree) -> Tree:
    """Of the joint gradient, from φ − way to φ + way"""
    ahead, behind = (joint_gradient(window, add_scaled(params, sign, way), meta) for sign in (1, -1))
    return subtract(ahead, behind)


@register("curvature", "zeroth_order")
@dataclass(frozen=True)
class ZerothOrder:
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

    def __post_init__(self) -> None:
        require_options(self)

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
