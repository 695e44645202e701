"""Look whether what came of a call is finite, and where it began not to be."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from metastep.core.trees import Tree, tree_leaves
from metastep.core.windows import InnerLoop, outer_value, task_gradient
from metastep.errors import NonFiniteError, warn

ZERO = (
    "the meta-gradient is exactly 0: θ does not reach the outer loss by what this method differentiates. Look for a "
    "start or a loss that is detached. If θ is only in the inner losses, use ms.MultiStep or ms.MAML instead of first "
    "order."
)
OVERFLOW = (
    "the meta-gradient is not finite, but every inner gradient and outer loss is. The sweep overflowed, or a "
    "second derivative does not exist, as that of a norm, a deviation or a cosine at 0. Lower the inner learning "
    "rate or the number of windows, or add a small number under each root."
)


def is_finite(loss: Tensor, grad: Tree) -> bool:
    """Return whether all is finite, and warn if a meta-gradient is zero."""
    largest = _largest([loss, *tree_leaves(grad)])
    if not all(map(isfinite, largest)):
        return False
    if not any(largest[1:]):
        warn(ZERO)
    return True


@torch.no_grad()
def _largest(tensors: Sequence[Tensor]) -> list[float]:
    """Return the size of the largest element of each tensor, by one look at the device."""
    sizes = torch._foreach_norm([x.detach() for x in tensors if x.numel()], torch.inf)
    found: list[float] = torch.stack([size.to(sizes[0].device) for size in sizes]).tolist()
    return found


def require_finite_task(loop: InnerLoop, meta: Tree, task: Any, loss: Tensor, grad: Tree) -> None:
    """Look once at the result of one task; only if it is not finite, run the task again to say where it began."""
    if not is_finite(loss, grad):
        place = where_not_finite(loop, meta, task)
        raise NonFiniteError(f"{place} Lower the inner learning rate, or look at the data." if place else OVERFLOW)


@torch.no_grad()
def where_not_finite(loop: InnerLoop, meta: Tree, task: Any) -> str | None:
    state, windows = loop.begin(meta, task), loop.windows(task)
    for k, window in enumerate(windows):
        gradient = task_gradient(window, state.params, meta)
        if not all(bool(torch.isfinite(leaf).all()) for leaf in tree_leaves(gradient)):
            return f"the inner gradient of window {k} (of {len(windows)}, counted from 0) is not finite."
        state = loop.inner.advance(state, gradient, meta, window.steps)
    loss, _ = outer_value(loop.problem, state.params, meta, task)
    return None if bool(torch.isfinite(loss)) else "all inner gradients are finite, but the outer loss is not."
