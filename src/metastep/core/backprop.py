"""Plain autograd through an inner loop, with all that it stores."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from metastep.core.constants import with_constants
from metastep.core.derivatives import grad_and_value
from metastep.core.estimators import Estimate, Estimator, Final, forward
from metastep.core.optimizers import State
from metastep.core.trees import Tree, map_tree
from metastep.core.windows import InnerLoop


def backprop(loop: InnerLoop, weights: Sequence[float] | Tensor | None = None) -> Estimator:
    """Plain autograd through the whole unroll: the reference that all others are tested against."""

    def estimate(meta: Tree, task: Any) -> Estimate:
        steps: list[Any] = []  # a number, which torch.func would not let through beside tensors

        def outer(meta: Tree, task: Any) -> tuple[Tensor, Any]:
            loss, state, metrics = forward(loop, meta, task, weights)
            steps.append(state.step)
            return loss, (metrics, state.params, state.memory)

        gradient, (loss, (metrics, params, memory)) = grad_and_value(with_constants(outer), has_aux=True)(meta, task)
        final = Final(State(params, memory, steps[-1]))
        return Estimate(loss, map_tree(torch.clone, gradient), metrics, final)  # autograd's may share memory

    return Estimator(loop, estimate, weights)
