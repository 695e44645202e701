"""Rates of inner optimizers: numbers, tensors, trees of them, schedules over steps, or functions of θ."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from metastep.core.options import Bound, require_number
from metastep.core.trees import Tree, difference, is_number, map_tree, tree_flatten, tree_leaves
from metastep.errors import MetastepError

# A number or tensor for all parameters, a tree with one of them for each, or a function of (meta, step) that gives
# either: a schedule looks at the step, a learned rate at meta.
Rate = Any

_NOT_NEGATIVE = Bound(ge=0)


def rate_at(rate: Rate, meta: Tree, step: Any, name: str = "a rate", bound: Bound = _NOT_NEGATIVE) -> Rate:
    """Return what a function of (meta, step) gives, and refuse numbers out of bounds; anything else stays as it is."""
    if not callable(rate):
        return rate
    value = _asked[-1](rate, meta, step) if _asked else rate(meta, step)
    for leaf in tree_leaves(value):
        if not isinstance(leaf, Tensor):  # a tensor depends on θ: to look at it would wait, or fail in a trace
            require_number(leaf, bound, f"{name} at step {step}")
    return value


Ask = Callable[[Callable[[Tree, Any], Rate], Tree, Any], Rate]
_asked: list[Ask] = []


@contextmanager
def asked_by(ask: Ask) -> Iterator[None]:
    """Inside, let `ask(function, meta, step)` answer for every rate that is a function."""
    _asked.append(ask)
    try:
        yield
    finally:
        _asked.pop()


def rates_of_leaves(rate: Rate, params: Tree) -> list[Any]:
    """One rate for each leaf of `params`: a number or a tensor serves all, a tree serves each its own"""
    leaves, spec = tree_flatten(params)
    if is_number(rate) or isinstance(rate, Tensor):
        return [rate] * len(leaves)
    own, own_spec = tree_flatten(rate)
    if own_spec != spec:
        of_rates, of_params = (map_tree(lambda leaf: None, tree) for tree in (rate, params))
        found = (
            difference(of_rates, of_params, "the rates", "the parameters")
            or "it has another order, or is of another kind"
        )
        raise MetastepError(
            f"a tree of rates does not match the parameters: {found}. "
            "Give one number for all parameters, or a tree with one entry for each. If only a head is adapted, make "
            "learned rates with ms.problems.with_rates(params, lr, head=head)."
        )
    return own


def at_step(rates: Tensor, step: Any) -> Tensor:
    """Return the rates of one step, counted from 0. The count is a tensor if an optimizer's memory was continued."""
    if isinstance(step, int) and not (rates.dim() and step < len(rates)):
        raise MetastepError(
            f"rates {tuple(rates.shape)} for step {step}, counted from 0: each inner step needs one. Make meta with "
            "gradient.init(net), where gradient has as many steps, or with ms.problems.with_rates(params, lr, steps)."
        )
    if isinstance(step, Tensor):  # rates[step] would read its value
        return rates.index_select(0, step.long().reshape(1)).squeeze(0)
    return rates[step]
