"""Rates of inner optimizers: numbers, tensors, trees of them, schedules over steps, or functions of θ."""

from math import isfinite
from typing import Any

import torch
from torch import Tensor

from metastep.core.noise import is_recorded
from metastep.core.trees import Tree, difference, is_number, map_tree, tree_flatten, tree_leaves
from metastep.errors import MetastepError

# A number or tensor for all parameters, a tree with one of them for each, or a function of (meta, step) that gives
# either: a schedule looks at the step, a learned rate at meta.
Rate = Any


def rate_at(rate: Rate, meta: Tree, step: int) -> Rate:
    if not callable(rate):
        return rate
    value = rate(meta, step)
    if is_number(value):
        require_rates(**{f"the rate at step {step}": value})
    return value


def require_rates(**rates: Rate) -> None:
    for name, rate in rates.items():
        for leaf in [] if callable(rate) else tree_leaves(rate):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                raise MetastepError(
                    f"{name} requires grad, but a tensor given as a rate is a constant. To learn it, put it into meta "
                    'and give a function, such as lambda meta, step: meta["lr"]. Otherwise detach it.'
                )
            if not _is_rate(leaf):
                raise MetastepError(
                    f"{name} = {leaf!r} is not a rate: it must be a number or a tensor, finite and not negative. "
                    "Check how it was made."
                )


def _is_rate(leaf: Any) -> bool:
    if is_number(leaf):
        return isfinite(leaf) and bool(leaf >= 0)
    if not isinstance(leaf, Tensor):
        return False
    # A look at a tensor on a GPU would wait for the GPU, and cannot be captured; in a trace there is nothing to see.
    return leaf.is_cuda or is_recorded() or bool((torch.isfinite(leaf) & (leaf >= 0)).all())


def require_fractions(**fractions: tuple[float, ...]) -> None:
    for name, values in fractions.items():
        if not all(0 <= value < 1 for value in values):
            raise MetastepError(f"{name} = {values} must lie in [0, 1): they weigh the old moments against the new.")


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
    """Of rates for each step, those of one; steps are counted from 0, by a tensor if an optimizer's memory goes on"""
    if isinstance(step, int) and not (rates.dim() and step < len(rates)):
        raise MetastepError(
            f"rates {tuple(rates.shape)} for step {step}, counted from 0: each inner step needs one. Make meta with "
            "gradient.init(net), where gradient has as many steps, or with ms.problems.with_rates(params, lr, steps)."
        )
    return rates[step]
