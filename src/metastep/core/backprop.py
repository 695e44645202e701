"""Plain autograd through an inner loop, with all that it stores: what every other estimate is tested against."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from metastep.core.derivatives import grad_and_value
from metastep.core.estimators import Estimate, Estimator, Final, forward
from metastep.core.guards import with_constants
from metastep.core.method import Method
from metastep.core.optimizers import State
from metastep.core.registry import register
from metastep.core.trees import Tree, map_tree
from metastep.core.windows import InnerLoop, Steps


@register("method", "reference")
@dataclass(frozen=True, repr=False)
class Reference(Method):
    """Differentiate the stored unroll by plain autograd: what MultiStep must equal, at the memory that it saves.

    Args:
        window: Steps that share a gradient, or a list with the length of each window.
        weights: One for the outer loss after each window. The last loss alone counts if left out.

    Example:
        >>> import metastep as ms
        >>> ms.methods.Reference(window=2)
        Reference(window=2)
    """

    window: Steps = 1
    weights: tuple[float, ...] | None = None

    def estimator(self, loop: InnerLoop) -> Estimator:
        return backprop(loop, self.weights)


def backprop(loop: InnerLoop, weights: Sequence[float] | Tensor | None = None) -> Estimator:
    """Return plain autograd through the whole unroll."""

    def estimate(meta: Tree, task: Any) -> Estimate:
        steps: list[Any] = []  # a number, which torch.func would not let through with tensors

        def outer(meta: Tree, task: Any) -> tuple[Tensor, Any]:
            loss, state, metrics = forward(loop, meta, task, weights)
            steps.append(state.step)
            return loss, (metrics, state.params, state.memory)

        gradient, (loss, (metrics, params, memory)) = grad_and_value(with_constants(outer), has_aux=True)(meta, task)
        final = Final(State(params, memory, steps[-1]))
        return Estimate(loss, map_tree(torch.clone, gradient), metrics, final)  # autograd's may share memory

    return Estimator(loop, estimate, weights)
