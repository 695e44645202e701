"""From one task to many: vmap of an estimator, and then the mean."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

import torch
from torch.func import vmap

from metastep.core.checks import (
    require_data,
    require_estimator,
    require_meta,
    require_other_names,
    require_unwritten,
    versions,
)
from metastep.core.estimators import Estimate, Estimator
from metastep.core.trees import Tree, add, map_tree, require_same, scale, tree_flatten, tree_leaves
from metastep.core.windows import outer_value, task_gradient
from metastep.errors import MetastepError, NonFiniteError


def over_tasks(
    estimator: Estimator, chunk_size: int | None = None, check_finite: bool = True
) -> Callable[[Tree, Any], Estimate]:
    """The mean meta-gradient over stacked tasks (or a list of them), with the metrics of each task.

    The estimator is mapped over tasks and then averaged; the other order, a gradient through a mapped loss, is
    silently wrong with BatchNorm. `chunk_size` tasks run at a time, which bounds the memory; with 1, they run one after
    the other without vmap, which serves whatever a single task does. `check_finite` looks at the result, and so waits
    for a GPU: one that is not finite is an error, one of zeros a warning. It is left out while compiling.
    """
    require_estimator(estimator)
    require_chunk(chunk_size)
    # vmap wants a function with a name: it prints an estimator otherwise, which cannot be compiled
    mapped = vmap(lambda meta, task: estimator(meta, task), in_dims=(None, 0), randomness="different")
    run = partial(alone, estimator) if chunk_size == 1 else mapped

    def estimate(meta: Tree, tasks: Any) -> Estimate:
        tasks = stack(tasks) if isinstance(tasks, list) else tasks
        number = task_count(tasks)
        size, before = chunk_size or number, versions(tasks)
        total, measured = None, []
        for i in range(0, number, size):
            loss, grads, metrics = run(meta, map_tree(lambda x, i=i: x[i : i + size], tasks))
            summed = map_tree(lambda g: g.sum(0), grads)  # at once: gradients of single tasks are not kept
            total = summed if total is None else add(total, summed)
            measured.append({"loss": loss, **require_other_names(metrics)})
        require_unwritten(tasks, before)
        each = map_tree(lambda *parts: torch.cat(parts), *measured)
        result = Estimate(each["loss"].mean(), scale(1 / number, total), each)
        if check_finite and not torch.compiler.is_compiling():
            require_finite(estimator, meta, tasks, result)
        return result

    # torch.compile keeps its recompilation limit, and which numbers it has seen change, for each code object.
    # Estimators that differ in a rate are different functions, so each gets its own; sharing one fails at the ninth.
    estimate.__code__ = estimate.__code__.replace(co_name=f"estimate_{next(_serial)}")
    return estimate


_serial = count()


def alone(estimator: Estimator, meta: Tree, tasks: Any) -> Estimate:
    """Of a single one among stacked tasks, as vmap gives it"""
    found = estimator(meta, map_tree(lambda x: x[0], tasks))
    return map_tree(lambda x: x[None], found)  # type: ignore[no-any-return]


ZERO = (
    "the meta-gradient is exactly 0: by what this method differentiates, θ does not reach the outer loss. So it is "
    "where a start or a loss is detached, and by first order for a θ that stands in the inner losses alone."
)


def require_chunk(chunk_size: int | None) -> None:
    if chunk_size is not None and chunk_size < 1:
        raise MetastepError(f"chunk_size = {chunk_size}: at least 1 task must run at a time.")


def stack(tasks: Sequence[Any]) -> Any:
    """Tasks of one shape, stacked along a new first axis"""
    if not tasks:
        raise MetastepError("there is no task: the list is empty.")
    require_data(tasks, "tasks")
    for i, task in enumerate(tasks):
        try:
            require_same(tasks[0], task, f"task 0 and task {i}")
        except MetastepError as error:
            raise MetastepError(
                f"{error} Tasks that run together must have one shape: group them by shape, one call for each group, "
                "and add up their gradients with metastep.write_grads(meta, grad, share=tasks of the group / all)."
            ) from None
    return map_tree(lambda *leaves: torch.stack(leaves), *tasks)


def task_count(tasks: Any) -> int:
    require_data(tasks, "tasks")
    counts = {leaf.shape[0] if leaf.dim() else None for leaf in tree_leaves(tasks)}
    if len(counts) != 1 or None in counts:
        raise MetastepError(
            f"stacked tasks need one number of tasks along their first axis, but it is {sorted(map(str, counts))}. "
            "Give a list of tasks to have them stacked; if this is a single one, [task]."
        )
    if counts == {0}:
        raise MetastepError("there is no task: their first axis has length 0.")
    return int(counts.pop() or 0)


def require_finite(estimator: Estimator, meta: Tree, tasks: Any, estimate: Estimate) -> None:
    """Look once at the result; only if it is not finite, run the tasks again one by one to say where it began."""
    leaves = tree_leaves(estimate.grad)
    if all(bool(torch.isfinite(leaf).all()) for leaf in (estimate.metrics["loss"], *leaves)):
        if not any(bool(leaf.any()) for leaf in leaves):
            warnings.warn(ZERO, stacklevel=3)
        return
    for i in range(task_count(tasks)):
        place = where_not_finite(estimator, meta, map_tree(lambda x, i=i: x[i], tasks))
        if place:
            raise NonFiniteError(f"task {i}: {place} Lower the inner rate, or look at that task's data.")
    raise NonFiniteError(
        "the meta-gradient is not finite, although every inner gradient and outer loss is: the sweep overflowed, or a "
        "second derivative does not exist, as that of a norm, a deviation or a cosine at 0. Lower the inner rate or "
        "the number of windows, or add a small number where a root is taken."
    )


@torch.no_grad()
def where_not_finite(estimator: Estimator, meta: Tree, task: Any) -> str | None:
    loop = estimator.loop
    state, windows = loop.begin(meta, task), loop.windows(task)
    for k, window in enumerate(windows):
        gradient = task_gradient(window, state.params, meta)
        if not all(bool(torch.isfinite(leaf).all()) for leaf in tree_leaves(gradient)):
            return f"the inner gradient of window {k} (of {len(windows)}, counted from 0) is not finite."
        state = loop.dynamics.advance(state, gradient, meta, window.steps)
    loss, _ = outer_value(loop.problem, state.params, meta, task)
    return None if bool(torch.isfinite(loss)) else "all inner gradients are finite, but the outer loss is not."


def write_grads(parameters: Tree, gradients: Tree, share: float | None = None) -> None:
    """Put a meta-gradient into the `.grad` of the parameters that meta was made of, for any torch.optim optimizer.

    What was there is replaced. share: add so much of it instead, where one step is made of several calls.
    """
    if isinstance(gradients, Estimate):
        raise MetastepError("a whole Estimate was given for its gradient: pass estimate.grad.")
    require_meta(parameters, "parameters")
    require_same(parameters, gradients, "parameters and meta-gradients")
    for p, g in zip(tree_flatten(parameters)[0], tree_flatten(gradients)[0], strict=True):
        p.grad = g if share is None else share * g if p.grad is None else p.grad + share * g
