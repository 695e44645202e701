"""Many tasks: stack them, count them, and check that their meta-gradient is finite."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from metastep.core.checks import require_data
from metastep.core.estimators import Estimate, Estimator
from metastep.core.trees import Tree, map_tree, require_same, tree_leaves
from metastep.core.windows import outer_value, task_gradient
from metastep.errors import MetastepError, NonFiniteError, warn

ZERO = (
    "the meta-gradient is exactly 0: θ does not reach the outer loss by what this method differentiates. Look for a "
    "start or a loss that is detached. If θ is only in the inner losses, use ms.MultiStep or ms.MAML instead of first "
    "order."
)


def require_order(meta: Any, tasks: Any = None) -> None:
    """Refuse tasks in the place of θ, an easy mistake: both are trees."""
    swapped = not isinstance(meta, Mapping | nn.Module) and hasattr(meta, "support")
    if swapped or isinstance(tasks, nn.Module):
        given = f"meta is a {type(meta).__name__}" if swapped else f"tasks is a module, {type(tasks).__name__}"
        raise MetastepError(f"{given}: the arguments are (meta, tasks), in this order.")


def stack(tasks: Sequence[Any]) -> Any:
    """Return tasks of one shape, stacked along a new first axis."""
    if not tasks:
        raise MetastepError("there is no task: the list is empty. Give at least one.")
    require_data(tasks, "tasks")
    for i, task in enumerate(tasks):
        try:
            require_same(tasks[0], task, f"task 0 and task {i}")
        except MetastepError as error:
            raise MetastepError(
                f"{error} Stacked tasks must have one shape. Give a list of tasks to an ms.MetaGradient, which runs "
                "tasks of different shapes one by one."
            ) from None
    return map_tree(lambda *leaves: torch.stack(leaves), *tasks)


def task_count(tasks: Any) -> int:
    require_data(tasks, "tasks")
    counts = {leaf.shape[0] if leaf.dim() else None for leaf in tree_leaves(tasks)}
    if len(counts) != 1 or None in counts:
        raise MetastepError(
            f"stacked tasks need one number of tasks along their first axis, but it is {sorted(map(str, counts))}. "
            "Give a list of tasks, which is stacked for you; for a single task, [task]."
        )
    if counts == {0}:
        raise MetastepError("there is no task: the first axis has length 0. Give at least one.")
    return int(counts.pop() or 0)


def require_finite(estimator_of: Callable[[int], Estimator], meta: Tree, tasks: Any, estimate: Estimate) -> None:
    """Refuse a meta-gradient that is not finite. The tasks are then run one by one to name the place.

    estimator_of: gives the estimator of task i.
    """
    largest = _largest([estimate.metrics["loss"], *tree_leaves(estimate.grad)])
    if all(map(isfinite, largest)):
        if not any(largest[1:]):
            warn(ZERO)
        return
    for i in range(task_count(tasks)):
        place = where_not_finite(estimator_of(i), meta, map_tree(lambda x, i=i: x[i], tasks))
        if place:
            raise NonFiniteError(f"task {i}: {place} Lower the inner learning rate, or look at the data of this task.")
    raise NonFiniteError(
        "the meta-gradient is not finite, but every inner gradient and outer loss is. The sweep overflowed, or a "
        "second derivative does not exist, as that of a norm, a deviation or a cosine at 0. Lower the inner learning "
        "rate or the number of windows, or add a small number under each root."
    )


@torch.no_grad()
def _largest(tensors: Sequence[Tensor]) -> list[float]:
    """Return the size of the largest element of each tensor, by one look at the device."""
    sizes = torch._foreach_norm([x.detach() for x in tensors if x.numel()], torch.inf)
    found: list[float] = torch.stack([size.to(sizes[0].device) for size in sizes]).tolist()
    return found


@torch.no_grad()
def where_not_finite(estimator: Estimator, meta: Tree, task: Any) -> str | None:
    loop = estimator.loop
    state, windows = loop.begin(meta, task), loop.windows(task)
    for k, window in enumerate(windows):
        gradient = task_gradient(window, state.params, meta)
        if not all(bool(torch.isfinite(leaf).all()) for leaf in tree_leaves(gradient)):
            return f"the inner gradient of window {k} (of {len(windows)}, counted from 0) is not finite."
        state = loop.inner.advance(state, gradient, meta, window.steps)
    loss, _ = outer_value(loop.problem, state.params, meta, task)
    return None if bool(torch.isfinite(loss)) else "all inner gradients are finite, but the outer loss is not."
