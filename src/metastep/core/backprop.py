"""Plain autograd through an inner loop, with all that it stores."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from metastep.core.checks import require_one_each
from metastep.core.constants import with_constants
from metastep.core.derivatives import grad_and_value
from metastep.core.estimators import Estimate, Estimator
from metastep.core.trees import Tree, map_tree
from metastep.core.windows import InnerLoop, outer_value


def backprop(loop: InnerLoop, weights: Sequence[float] | Tensor | None = None) -> Estimator:
    """Plain autograd through the whole unroll: the reference that all others are tested against."""

    def outer(meta: Tree, task: Any) -> tuple[Tensor, dict[str, Tensor]]:
        windows, state = loop.windows(task), loop.begin(meta, task)
        if weights is None:
            return outer_value(loop.problem, loop.run(windows, state, meta).params, meta, task)
        total = torch.zeros(())
        for window, weight in zip(windows, require_one_each(weights, windows), strict=True):
            state = loop.run([window], state, meta)
            loss, metrics = outer_value(loop.problem, state.params, meta, task)
            total = total + weight * loss
        return total, metrics

    def estimate(meta: Tree, task: Any) -> Estimate:
        gradient, (loss, metrics) = grad_and_value(with_constants(outer), has_aux=True)(meta, task)
        return Estimate(loss, map_tree(torch.clone, gradient), metrics)  # autograd's may share memory

    return Estimator(loop, estimate)
