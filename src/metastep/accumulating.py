"""Gradient accumulation: derivatives of losses that are means over examples, by one part of the examples after another.

The sweep bounds the memory of the inner steps, and this that of each of them: what is stored is the graph of one part.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from typing import Any

from torch import Tensor
from torch.func import grad, grad_and_value

from metastep.by_hand import ByHand, OuterByHand
from metastep.checks import require_problem, require_windows
from metastep.curvature import forward_over_reverse
from metastep.errors import MetastepError
from metastep.noise import replayed
from metastep.trees import Tree, add, map_tree, scale, tree_leaves
from metastep.windows import Loss, Problem, Window, outer_value, scalar


def accumulated(problem: Problem, size: int) -> Problem:
    """The same problem, whose support and query are gone through by `size` examples at a time.

    For losses and metrics that are means over the first axis, as most are: the numbers stay the same. A BatchNorm would
    see the part alone. `adapt_only` goes inside, and curvatures other than `exact` take all examples at once.
    """
    require_problem(problem)
    if size < 1:
        raise MetastepError(f"parts of {size} examples: each has at least one.")

    def windows(task: Any, lengths: Sequence[int]) -> list[Window]:
        found = require_windows(problem.windows(task, lengths))
        return [window._replace(loss=_by_parts(window.loss, list(shares(window.batch, size)))) for window in found]

    return problem._replace(windows=windows, outer_loss=_outer_by_parts(problem, size))


Share = tuple[float, Any]  # how much of the mean a part of the examples is, and that part


def shares(examples: Any, size: int) -> Iterator[Share]:
    counts = {leaf.shape[0] if leaf.dim() else 0 for leaf in tree_leaves(examples)}
    if len(counts) != 1 or counts == {0}:
        raise MetastepError(
            f"examples are counted along the first axis, which has lengths {sorted(counts)}: no parts can be taken of "
            "them. Give all tensors of a support or a query one number of examples."
        )
    (number,) = counts
    for i in range(0, number, size):
        yield min(size, number - i) / number, map_tree(lambda x, i=i: x[i : i + size], examples)


def _by_parts(loss: Loss, parts: Sequence[Share]) -> ByHand:
    looks = [(share, Window(replayed(loss), part, 1)) for share, part in parts]  # each draws noise of its own, once

    def value(params: Tree, meta: Tree, batch: Any) -> Tensor:
        del batch  # all parts of it
        return _mean((share, look.loss(params, meta, look.batch)) for share, look in looks)  # type: ignore[no-any-return]

    def gradient(params: Tree, meta: Tree, batch: Any) -> Tree:
        del batch
        return _mean((share, grad(scalar(look.loss))(params, meta, look.batch)) for share, look in looks)

    def product(params: Tree, meta: Tree, batch: Any, direction: Tree) -> tuple[Tree, Tree]:
        del batch
        both = ((share, forward_over_reverse(look, params, meta, direction)) for share, look in looks)
        return _mean(both)  # type: ignore[no-any-return]

    return ByHand(value, gradient, product)


def _outer_by_parts(problem: Problem, size: int) -> OuterByHand:
    def parts(task: Any) -> Iterator[tuple[float, Any]]:
        return ((share, task._replace(query=part)) for share, part in shares(task.query, size))

    value = partial(outer_value, problem)
    both = grad_and_value(value, argnums=(0, 1), has_aux=True)

    def each(function: Callable[..., Any], params: Tree, meta: Tree, task: Any) -> Any:
        return _mean((share, function(params, meta, part)) for share, part in parts(task))

    return OuterByHand(partial(each, value), partial(each, both))


def _mean(parts: Iterator[tuple[float, Tree]]) -> Tree:
    """One at a time: what is behind a part is let go of before the next is made"""
    return reduce(add, (scale(share, tree) for share, tree in parts))
