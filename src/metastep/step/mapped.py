"""Many tasks by autograd: map a method over them by vmap, or run one after the other, and average.

A method is mapped and then averaged. The other order, a gradient through a mapped loss, is silently wrong with
BatchNorm.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from metastep.core.checks import require_other_names
from metastep.core.counting import uncounted
from metastep.core.derivatives import followable
from metastep.core.estimators import Estimate, Estimator, Final
from metastep.core.method import Method
from metastep.core.optimizers import InnerOptimizer, State
from metastep.core.tasks import task_count
from metastep.core.torch_errors import explained
from metastep.core.trees import Tree, add, map_tree, scale, tree_leaves
from metastep.core.windows import InnerLoop
from metastep.errors import MetastepError, how_many

Keep = Literal["params", "state"] | None

# Tasks that vmap takes at a time on a CPU. Conv4 with 64 filters, 5-way 1-shot with 15 queries, CPU ms of one thread
# for each task, by ones, twos, fours, eights: MAML 255, 174, 149, 142, Multi-step(4) 93, 67, 63, 66.
VMAP_CHUNK = 4


class Kept(NamedTuple):
    """Where the inner loops of all tasks ended: what `start=` continues from.

    Attributes:
        params: φ of each task, stacked along a new first axis.
        memory: The memory of each inner optimizer.
        solution: The solutions of an implicit method's linear systems, or ().
        step: How many inner steps were made.
        inner: The name of the inner optimizer that the memory belongs to.
    """

    params: Tree
    memory: Tree = ()
    solution: Tree = ()
    step: Any = 0
    inner: Any = ()


def require_start(start: Any, tasks: Any, inner: InnerOptimizer) -> Any:
    """Return where the inner loops begin, as tensors of each task, or refuse what is not that."""
    number, own = task_count(tasks), type(inner).__name__
    leaves = tree_leaves(start[:3] if isinstance(start, Kept) else start)
    odd = [leaf for leaf in leaves if not isinstance(leaf, Tensor) or leaf.dim() == 0 or len(leaf) != number]
    if odd:
        found = tuple(odd[0].shape) if isinstance(odd[0], Tensor) else f"a {type(odd[0]).__name__}"
        raise MetastepError(
            f"start must hold φ of each of the {how_many(number, 'task')}, stacked along a first axis, but has {found} "
            "in it. Give what keep= returned for as many tasks, or φ repeated for each."
        )
    if not isinstance(start, Kept):
        return start
    if start.inner not in ((), own):
        raise MetastepError(
            f"start was kept by {start.inner}, and {own} cannot continue its memory. Give start=state.params."
        )
    return start._replace(inner=())


class Parts(NamedTuple):
    """What one task gives: tensors alone, as vmap wants them."""

    loss: Tensor
    grad: Tree
    metrics: dict[str, Tensor]
    kept: Tree
    growth: Tree = ()


Way = Callable[[Estimator, Tree, Any, bool], Estimate]  # (estimator, meta, task, whether vmap maps it) -> its estimate


def as_specified(estimator: Estimator, meta: Tree, task: Any, mapped: bool) -> Estimate:
    """Compute one task as `core.estimators` has it."""
    del mapped
    return estimator(meta, task)


def mapped(
    method: Method,
    loop: InnerLoop,
    chunk_size: int | None,
    keep: Keep = None,
    judged: bool = False,
    way: Way = as_specified,
) -> Callable[[Tree, Any, Any], Estimate]:
    """Return a function (meta, stacked tasks, start) -> Estimate.

    chunk_size: tasks at a time; with 1, they run one after the other without vmap.
    judged: leave out the meta-gradient.
    way: how one task is computed.
    """
    plain = method.estimator(loop)

    def one(meta: Tree, task: Any, first: Any, together: bool, steps: list[Any]) -> Parts:
        estimator = plain if first is None else method.estimator(started(loop, first))
        if judged:
            loss, metrics = estimator.judge(meta, task)
            return Parts(loss, (), metrics, ())
        return _parts(way(estimator, meta, task, together), keep, steps)

    def estimate(meta: Tree, tasks: Any, start: Any = None) -> Estimate:
        meta, tasks, start = followable((meta, tasks, start))
        number, steps = task_count(tasks), list[Any]()
        size, total = chunk_size or at_once(tasks, number), None
        measured, kept, grown = [], [], []
        begins = loop if start is None else started(loop, _at(start, 0))
        reads = plain.reads._replace(twice=False) if judged else plain.reads
        with explained(meta), plain.looks.watched(begins, reads, meta, _at(tasks, 0), mapped=min(size, number) > 1):
            for i in range(0, number, size):
                with uncounted() if i else nullcontext():
                    found = _run(partial(one, steps=steps), meta, tasks, start, range(i, min(i + size, number)))
                total = found.grad if total is None else add(total, found.grad)
                measured.append({"loss": found.loss, **require_other_names(found.metrics)})
                kept.append(found.kept)
                grown.append(found.growth)
        each = map_tree(lambda *parts: torch.cat(parts), *measured)
        state = _joined(kept, steps[-1]) if keep else None
        return Estimate(each["loss"].mean(), scale(1 / number, total), each, state, joined(grown))

    return estimate


def at_once(tasks: Any, number: int) -> int:
    """Return how many tasks run at a time by default."""
    return VMAP_CHUNK if tree_leaves(tasks)[0].device.type == "cpu" else number


def started(loop: InnerLoop, first: Any) -> InnerLoop:
    """Return the loop of one task from a φ, or from what an earlier call kept."""
    if not isinstance(first, Kept):
        return loop._replace(first=loop.inner.init(first))
    solution = None if first.solution == () else first.solution
    return loop._replace(first=State(first.params, first.memory, first.step), solution=solution)


def _parts(estimate: Estimate, keep: Keep, steps: list[Any]) -> Parts:
    loss, grad, metrics, final, growth = estimate
    return Parts(loss, grad, metrics, _kept(final, keep, steps), () if growth is None else growth)


def _kept(final: Final, keep: Keep, steps: list[Any]) -> Tree:
    if keep is None:
        return ()
    steps.append(final.state.step)
    if keep == "params":
        return (final.state.params,)
    step = final.state.step if isinstance(final.state.step, Tensor) else ()
    return final.state.params, final.state.memory, final.solution, step


def _run(one: Callable[[Tree, Any, Any, bool], Parts], meta: Tree, tasks: Any, start: Any, some: range) -> Parts:
    """Run some of the tasks, and sum their gradients."""
    if len(some) > 1:
        found = _by_vmap(one, meta, _slice(tasks, some), _slice(start, some))
        return found._replace(grad=map_tree(lambda g: g.sum(0), found.grad))
    found = one(meta, _at(tasks, some.start), None if start is None else _at(start, some.start), False)
    rest: Parts = map_tree(lambda x: x[None], found._replace(grad=()))
    return rest._replace(grad=found.grad)


def _by_vmap(one: Callable[[Tree, Any, Any, bool], Parts], meta: Tree, tasks: Any, start: Any) -> Parts:
    counted = isinstance(start, Kept) and not isinstance(start.step, Tensor)
    step, given = (start.step, start._replace(step=())) if counted else (None, start)

    def of_task(meta: Tree, task: Any, first: Any) -> Parts:
        return one(meta, task, first._replace(step=step) if counted else first, True)

    if start is None:
        return vmap(lambda meta, task: one(meta, task, None, True), (None, 0), randomness="different")(meta, tasks)
    return vmap(of_task, (None, 0, 0), randomness="different")(meta, tasks, given)


def _at(tree: Tree, i: int) -> Tree:
    return map_tree(lambda x: x[i] if isinstance(x, Tensor) else x, tree)


def _slice(tree: Tree, some: range) -> Tree:
    return map_tree(lambda x: x[some.start : some.stop] if isinstance(x, Tensor) else x, tree)


def joined(parts: list[Any]) -> Tensor | None:
    """Return what parts of the tasks gave, or None if there is nothing."""
    return torch.cat(parts) if isinstance(parts[0], Tensor) else None


def _joined(kept: list[Tree], step: Any) -> Tree:
    """Return what the chunks kept: φ alone, or all of the state."""
    whole = map_tree(lambda *parts: torch.cat(parts), *kept)
    if len(whole) == 1:
        return whole[0]
    params, memory, solution, of_each = whole
    return Kept(params, memory, solution, step if isinstance(of_each, tuple) else of_each)
