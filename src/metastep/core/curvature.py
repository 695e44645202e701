"""Second-order products: pull a direction back through the inner gradient g = ∂L/∂φ.

Every curvature is a function (window, params, meta, direction) -> (h, c) with h = (∂²L/∂φ²)·direction and
c = (∂²L/∂θ∂φ)·direction. This is the only second-order work in the subject, and where the methods differ.
"""

from collections.abc import Callable
from typing import Any

import torch

from metastep.core.constants import with_constants
from metastep.core.counting import count_product
from metastep.core.derivatives import grad, vjp
from metastep.core.hidden import Hidden
from metastep.core.trees import Tree, add_scaled, dot, map_tree, normal_like, scale, split_floats, subtract, zeros_like
from metastep.core.windows import Loss, Window, joint_gradient, scalar
from metastep.errors import require_positive

Curvature = Callable[[Window, Tree, Tree, Tree], tuple[Tree, Tree]]


def exact(window: Window, params: Tree, meta: Tree, direction: Tree) -> tuple[Tree, Tree]:
    """Reverse over reverse, or what the loss has brought"""
    count_product()
    product = getattr(window.loss, "product_by_hand", lambda *at: reverse_over_reverse(window.loss, *at))
    return product(params, meta, window.batch, direction)


def reverse_over_reverse(loss: Loss, params: Tree, meta: Tree, batch: Any, direction: Tree) -> tuple[Tree, Tree]:
    """What ∂L/∂φ hands back to φ and θ along a direction"""
    gradient = grad(with_constants(scalar(loss)))
    return vjp(lambda p, m: gradient(p, m, batch), params, meta)[1](direction)  # type: ignore[no-any-return]


def exact_forward(window: Window, params: Tree, meta: Tree, direction: Tree) -> tuple[Tree, Tree]:
    """Forward over reverse: the derivative of (∂L/∂φ, ∂L/∂θ) along (direction, 0)"""
    count_product()
    gradients = torch.func.grad(with_constants(scalar(window.loss)), argnums=(0, 1))
    # The batch gets a tangent of zeros: without any, mse_loss fails, and so does a compiled matmul on a GPU.
    numbers, rebuild = split_floats(window.batch)
    still = zeros_like(numbers)
    along = torch.func.jvp(lambda p, x: gradients(p, meta, rebuild(x)), (params, numbers), (direction, still))
    return along[1]  # type: ignore[no-any-return]


def central_difference(delta: float = 0.1) -> Curvature:
    """[∇L(φ+εd) − ∇L(φ−εd)] / 2ε of the joint gradient (HF-MAML), with ‖εd‖ = delta whatever the size of d"""
    require_positive(delta=delta)

    def pull(window: Window, params: Tree, meta: Tree, direction: Tree) -> tuple[Tree, Tree]:
        length = dot(direction, direction).sqrt()
        step = delta / torch.where(length > 0, length, 1.0)
        return scale(1 / (2 * step), _change(window, params, meta, scale(step, direction)))  # type: ignore[no-any-return]

    return pull


def gaussian_smoothing(samples: int = 8, sigma: float = 1e-2) -> Curvature:
    """E[(∇L(φ+σu) − ∇L(φ−σu)) / 2σ · ⟨u, d⟩], u ~ N(0, I), of the joint gradient (GGS-MAML, with mirrored samples)"""
    require_positive(samples=samples, sigma=sigma)

    def pull(window: Window, params: Tree, meta: Tree, direction: Tree) -> tuple[Tree, Tree]:
        total, share = (zeros_like(params), zeros_like(meta)), 1 / (2 * sigma * samples)
        for _ in range(samples):
            u = normal_like(params)
            total = add_scaled(total, share * dot(u, direction), _change(window, params, meta, scale(sigma, u)))
        return total

    return pull


def _change(window: Window, params: Tree, meta: Tree, way: Tree) -> Tree:
    """Of the joint gradient, from φ − way to φ + way"""
    ahead, behind = (joint_gradient(window, add_scaled(params, sign, way), meta) for sign in (1, -1))
    return subtract(ahead, behind)


def zeroth_order(samples: int = 8, sigma: float = 1e-1) -> Curvature:
    """E[(L(φ+σu) + L(φ−σu) − 2L(φ)) / 2σ² · (uuᵀ − I)] d, u ~ N(0, I), from losses alone (ES-MAML)"""
    require_positive(samples=samples, sigma=sigma)

    def pull(window: Window, params: Tree, meta: Tree, direction: Tree) -> tuple[Tree, Tree]:
        hidden = Hidden("zeroth-order curvature (ES-MAML)")
        total, here = zeros_like(params), window.loss(params, hidden, window.batch)
        for _ in range(samples):
            u = normal_like(params)
            ahead, behind = (window.loss(add_scaled(params, s, u), hidden, window.batch) for s in (sigma, -sigma))
            bend, along = (ahead + behind - 2 * here) / (2 * sigma**2 * samples), dot(u, direction)
            total = map_tree(lambda t, u, d, b=bend, a=along: t + b * (a * u - d), total, u, direction)
        return total, zeros_like(meta)

    return pull
