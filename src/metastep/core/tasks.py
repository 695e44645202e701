"""Many tasks: stack them, count them, and check that their meta-gradient is finite."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from metastep.core.checks import require_data
from metastep.core.estimators import Estimate
from metastep.core.finite import OVERFLOW, is_finite, where_not_finite
from metastep.core.trees import Tree, map_tree, require_same, tree_leaves
from metastep.core.windows import InnerLoop
from metastep.errors import MetastepError, NonFiniteError


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


def require_finite(loop_of: Callable[[int], InnerLoop], meta: Tree, tasks: Any, estimate: Estimate) -> None:
    """Refuse a meta-gradient that is not finite. The tasks are then run one by one to name the place.

    loop_of: gives the inner loop of task i.
    """
    if is_finite(estimate.metrics["loss"], estimate.grad):
        return
    for i in range(task_count(tasks)):
        place = where_not_finite(loop_of(i), meta, map_tree(lambda x, i=i: x[i], tasks))
        if place:
            raise NonFiniteError(f"task {i}: {place} Lower the inner learning rate, or look at the data of this task.")
    raise NonFiniteError(OVERFLOW)
