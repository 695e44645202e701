"""Sums of products: a derivative of one has two terms, by the product rule."""

from collections.abc import Sequence
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor

from metastep.step.chain.chain import Block

Term = tuple[Tensor, Tensor]
Pair = tuple[Tensor, Tensor | None]  # a, and ȧ where there is a direction

ROWS = 2048  # 0.5 MB of 64 channels


class Convolution(Protocol):
    """z = conv(a, w), and what dz is to w and to a, of pairs that are added up

    Arrays are (tasks, rows, channels), where positions of all pictures of a task are rows.
    """

    def seen(self, block: Block, a: Tensor) -> Tensor:
        """What the others want of a"""

    def convolved(self, block: Block, *terms: Term) -> Tensor:
        """z of pairs (seen a, w)"""

    def to_weight(self, block: Block, *terms: Term) -> Tensor:
        """dw of pairs (seen a, dz)"""

    def to_input(self, block: Block, *terms: Term) -> Tensor:
        """da of pairs (dz, w)"""


def product_rule(a: Pair, b: Pair) -> list[Term]:
    """What the derivative of a product is the sum of, aḃ + ȧb; without a direction, ab"""
    if b[1] is None:
        return [(a[0], b[0])]
    return [(a[0], b[1]), *([] if a[1] is None else [(a[1], b[0])])]


def products(terms: Sequence[Term]) -> Tensor:
    """Σ ab of pairs, for each task"""
    (a, b), *rest = terms
    return reduce(lambda total, term: total.baddbmm_(*term), rest, torch.bmm(a, b))


def added(parts: list[Tensor]) -> Tensor:
    """Their sum, in the place of the first"""
    return reduce(torch.Tensor.add_, parts)


def mean_product(*terms: Term) -> Tensor:
    """Σ a·b of pairs, its mean over rows: some at a time, so that products need no room and stay in the cache"""
    rows, sums = terms[0][0].shape[1], []
    for i in range(0, rows, ROWS):
        (a, b), *rest = [(a[:, i : i + ROWS], b[:, i : i + ROWS]) for a, b in terms]
        total = reduce(lambda total, term: total.addcmul_(*term), rest, a * b)
        sums.append(total.sum(1, keepdim=True))
    return added(sums) / rows
