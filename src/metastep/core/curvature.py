"""Second-order products: pull a direction back through the inner gradient g = ∂L/∂φ.

Every curvature is a function (window, params, meta, direction) -> (h, c) with h = (∂²L/∂φ²)·direction and
c = (∂²L/∂θ∂φ)·direction. This is the only second-order work of a meta-gradient. The two here are exact;
`approximate_curvature` has those that need first derivatives only.
"""

from collections.abc import Callable
from typing import Any

import torch

from metastep.core.approximate_curvature import CentralDifference, GaussianSmoothing, ZerothOrder
from metastep.core.counting import count_product
from metastep.core.derivatives import grad, vjp
from metastep.core.guards import guarded
from metastep.core.registry import register
from metastep.core.trees import Tree, split_floats, zeros_like
from metastep.core.windows import Loss, Window

__all__ = ["CentralDifference", "Curvature", "GaussianSmoothing", "ZerothOrder", "exact", "exact_forward"]

Curvature = Callable[[Window, Tree, Tree, Tree], tuple[Tree, Tree]]
"""A function (window, params, meta, direction) -> (∂²L/∂φ² · direction, ∂²L/∂θ∂φ · direction)."""


def needs_graph(curvature: Curvature) -> bool:
    """Return whether autograd takes second derivatives of the losses for it."""
    return curvature in (exact, exact_forward)


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
    """Pull a direction back through ∂L/∂φ to φ and θ."""
    gradient = grad(guarded(loss).twice)
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
    gradients = torch.func.grad(guarded(window.loss).twice, argnums=(0, 1))
    # The batch gets a tangent of zeros: without any, mse_loss fails, and so does a compiled matmul on a GPU.
    numbers, rebuild = split_floats(window.batch)
    still = zeros_like(numbers)
    along = torch.func.jvp(lambda p, x: gradients(p, meta, rebuild(x)), (params, numbers), (direction, still))
    return along[1]  # type: ignore[no-any-return]
