"""Compute sums of products. The derivative of a product has two terms, by the product rule."""

from collections.abc import Sequence
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor

from metastep.step.chain.chain import Block

Term = tuple[Tensor, Tensor]
Pair = tuple[Tensor, Tensor | None]  # a, and ȧ if there is a direction

ROWS = 2048  # 0.5 MB at 64 channels


class Convolution(Protocol):
    """Compute sums of z = conv(a, w) over pairs, and of its gradients by w and by a.

    Arrays are (tasks, rows, channels). Rows are the positions of all pictures of a task.
    """

    def seen(self, block: Block, a: Tensor) -> Tensor:
        """Return the form of a that the other methods take."""

    def convolved(self, block: Block, *terms: Term) -> Tensor:
        """Return z of pairs (seen a, w)."""

    def to_weight(self, block: Block, *terms: Term) -> Tensor:
        """Return dw of pairs (seen a, dz)."""

    def to_input(self, block: Block, *terms: Term) -> Tensor:
        """Return da of pairs (dz, w)."""


def product_rule(a: Pair, b: Pair) -> list[Term]:
    """Return the factors of aḃ + ȧb, the derivative of a product; without a direction, those of ab."""
    if b[1] is None:
        return [(a[0], b[0])]
    return [(a[0], b[1]), *([] if a[1] is None else [(a[1], b[0])])]


def products(terms: Sequence[Term]) -> Tensor:
    """Return Σ ab over pairs, for each task."""
    (a, b), *rest = terms
    return reduce(lambda total, term: total.baddbmm_(*term), rest, torch.bmm(a, b))


def added(parts: list[Tensor]) -> Tensor:
    """Add all parts to the first, in place."""
    return reduce(torch.Tensor.add_, parts)


def mean_product(*terms: Term) -> Tensor:
    """Return Σ a·b over pairs, as a mean over rows. Chunks of rows keep the products in the cache."""
    rows, sums = terms[0][0].shape[1], []
    for i in range(0, rows, ROWS):
        (a, b), *rest = [(a[:, i : i + ROWS], b[:, i : i + ROWS]) for a, b in terms]
        total = reduce(lambda total, term: total.addcmul_(*term), rest, a * b)
        sums.append(total.sum(1, keepdim=True))
    return added(sums) / rows
