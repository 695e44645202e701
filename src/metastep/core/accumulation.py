"""Gradient accumulation: derivatives of losses that are means over examples, one part of the examples at a time.

The sweep bounds the memory of the inner steps. Accumulation bounds the memory of each step: it stores the graph of one
part.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any

from torch import Tensor

from metastep.core.curvature import reverse_over_reverse
from metastep.core.custom_losses import ByHand, OuterByHand
from metastep.core.derivatives import grad, grad_and_value
from metastep.core.guards import Guarded
from metastep.core.problems import with_losses
from metastep.core.trees import Tree, add, map_tree, scale, tree_leaves
from metastep.core.windows import Loss, Problem, outer_value
from metastep.errors import MetastepError


def accumulated(problem: Problem, size: int) -> Problem:
    """Return the same problem, which computes `size` examples of support and query at a time.

    The numbers stay the same if losses and metrics are means over the first axis. A BatchNorm sees one part alone.
    Apply `adapt_only` first. Curvatures other than `exact` take all examples at once.
    """
    if size < 1:
        raise MetastepError(f"parts of {size} examples: each has at least one.")
    inner = with_losses(problem, lambda loss, task: _by_parts(loss, size))
    return inner._replace(outer_loss=_outer_by_parts(problem, size))


def shares(examples: Any, size: int) -> Iterator[tuple[float, Any]]:
    """Yield parts of the examples, each with its share of the mean."""
    counts = {leaf.shape[0] if leaf.dim() else 0 for leaf in tree_leaves(examples)}
    if len(counts) != 1 or counts == {0}:
        raise MetastepError(
            f"examples are counted along the first axis, which has lengths {sorted(counts)}: no parts can be taken of "
            "them. Give all tensors of a support or a query one number of examples."
        )
    (number,) = counts
    for i in range(0, number, size):
        yield min(size, number - i) / number, map_tree(lambda x, i=i: x[i : i + size], examples)


def _by_parts(loss: Loss, size: int) -> ByHand:
    drawn: defaultdict[int, Loss] = defaultdict(lambda: Guarded(loss))  # each part draws noise of its own, once

    def each(function: Callable[..., Any], params: Tree, meta: Tree, batch: Any, *direction: Tree) -> Any:
        parts = enumerate(shares(batch, size))
        return _mean((share, function(drawn[i], params, meta, part, *direction)) for i, (share, part) in parts)

    def value(loss: Loss, *at: Any) -> Tensor:
        return loss(*at)

    def gradient(loss: Loss, *at: Any) -> Tree:
        return grad(loss)(*at)

    return ByHand(partial(each, value), partial(each, gradient), partial(each, reverse_over_reverse))


def _outer_by_parts(problem: Problem, size: int) -> OuterByHand:
    value = partial(outer_value, problem)
    both = grad_and_value(value, argnums=(0, 1), has_aux=True)

    def each(function: Callable[..., Any], params: Tree, meta: Tree, task: Any) -> Any:
        parts = shares(task.query, size)
        return _mean((share, function(params, meta, task._replace(query=part))) for share, part in parts)

    return OuterByHand(partial(each, value), partial(each, both))


def _mean(parts: Iterator[tuple[float, Tree]]) -> Tree:
    """Return Σ share · tree. The graph of a part is freed before the next is made."""
    return reduce(add, (scale(share, tree) for share, tree in parts))
