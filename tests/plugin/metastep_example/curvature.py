"""Second-order products by one-sided differences: half the gradients of central ones."""

from typing import Any

import torch

import metastep as ms


@ms.register("curvature", "one_sided")
def one_sided(window: ms.Window, params: Any, meta: Any, direction: Any) -> Any:
    """Return [∇L(φ + εd) − ∇L(φ)] / ε of the joint gradient."""
    gradient, step = torch.func.grad(window.loss, argnums=(0, 1)), 1e-4
    ahead, here = (gradient(ms.trees.add_scaled(params, at, direction), meta, window.batch) for at in (step, 0.0))
    return ms.trees.scale(1 / step, ms.trees.subtract(ahead, here))
