"""Losses that bring their own derivatives, so that autograd computes none."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metastep.core.derivatives import vjp
from metastep.core.trees import Tree, add_scaled, hollow_like, map_tree, norm, subtract
from metastep.core.windows import Loss, Problem


@dataclass(frozen=True)
class ByHand:
    """Hold a loss of windows and its derivatives. It is called as any other loss."""

    value: Loss
    gradient_by_hand: Callable[[Tree, Tree, Any], Tree]
    """(params, meta, batch) -> ∂L/∂φ"""
    product_by_hand: Callable[[Tree, Tree, Any, Tree], tuple[Tree, Tree]]
    """(params, meta, batch, direction) -> (∂²L/∂φ²)·direction, (∂²L/∂θ∂φ)·direction"""

    def __call__(self, params: Tree, meta: Tree, batch: Any) -> Tensor:
        return self.value(params, meta, batch)


@dataclass(frozen=True)
class OuterByHand:
    """Hold an outer loss and its gradients. It is called as any other loss."""

    value: Callable[[Tree, Tree, Any], Any]
    gradients_by_hand: Callable[[Tree, Tree, Any], tuple[tuple[Tree, Tree], tuple[Tensor, dict[str, Tensor]]]]
    """(params, meta, task) -> (∂L/∂φ, ∂L/∂θ), (L, metrics)"""
    norm_by_hand: Callable[[Tree], Tensor] = norm
    """∂L/∂φ -> its length, of each task if φ holds several"""

    def __call__(self, params: Tree, meta: Tree, task: Any) -> Any:
        return self.value(params, meta, task)


def length_of(problem: Problem, slope: Tree) -> Tensor:
    """Return the length of ∂L/∂φ, of each task if φ holds several."""
    return getattr(problem.outer_loss, "norm_by_hand", norm)(slope)


class Proximal(NamedTuple):
    """Hold the parts of an inner loss that pulls φ back to its start: loss + ½ · strength · ‖φ − start(θ)‖²."""

    loss: Loss
    start: Callable[[Tree], Tree]
    strength: float


def pulled_by_hand(value: Loss, loss: ByHand, start: Callable[[Tree], Tree], strength: float) -> ByHand:
    """Return the loss + ½ · strength · ‖φ − φ₁(θ)‖² with its derivatives; `value` is that sum, and φ₁ is `start`."""

    def gradient(params: Tree, meta: Tree, batch: Any) -> Tree:
        away = subtract(params, start(meta))
        return map_tree(partial(torch.add, alpha=strength), loss.gradient_by_hand(params, meta, batch), away)

    def product(params: Tree, meta: Tree, batch: Any, direction: Tree) -> tuple[Tree, Tree]:
        h, c = loss.product_by_hand(params, meta, batch, direction)
        (back,) = vjp(start, meta)[1](direction)
        return add_scaled(h, strength, direction), add_scaled(c, -strength, back)

    return ByHand(value, gradient, product)


def of_params_by_hand(value: Loss, loss: ByHand) -> ByHand:
    """Return the loss for a meta whose "params" are θ, with its derivatives; `value` is that loss."""

    def gradient(params: Tree, meta: Tree, batch: Any) -> Tree:
        return loss.gradient_by_hand(params, meta["params"], batch)

    def product(params: Tree, meta: Tree, batch: Any, direction: Tree) -> tuple[Tree, Tree]:
        h, c = loss.product_by_hand(params, meta["params"], batch, direction)
        return h, hollow_like(meta) | {"params": c}

    return ByHand(value, gradient, product)
