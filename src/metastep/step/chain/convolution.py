"""Convolve in PyTorch, and add up products. The derivative of a product has two terms, by the product rule."""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from metastep.step.chain.chain import Block

Term = tuple[Tensor, Tensor]
Pair = tuple[Tensor, Tensor | None]  # a, and ȧ if there is a direction

ROWS = 2048  # 0.5 MB at 64 channels


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


class ByPatches:
    """Compute sums of z = conv(a, w) over pairs, and of its gradients by w and by a.

    Arrays are (tasks, rows, channels). Rows are the positions of all pictures of a task. Their patches are collected
    (im2col), so that many tasks are one batched product.
    """

    def seen(self, block: Block, a: Tensor) -> Tensor:
        """Return the form of a that the other methods take: (tasks, rows, kernel · kernel · channels), the patches."""
        (p, q), k, s, n = (block.padding, block.behind), block.kernel, block.stride, block.size
        pictures = a.view(a.shape[0], -1, n, n, block.inputs)
        patches = F.pad(pictures, (0, 0, p, q, p, q)).unfold(2, k, s).unfold(3, k, s)
        return patches.permute(0, 1, 2, 3, 5, 6, 4).reshape(a.shape[0], -1, k * k * block.inputs)

    def convolved(self, block: Block, *terms: Term) -> Tensor:
        """Return z of pairs (seen a, w)."""
        return products(terms)

    def to_weight(self, block: Block, *terms: Term) -> Tensor:
        """Return dw of pairs (seen a, dz)."""
        return products([(columns.mT, d) for columns, d in terms])

    def to_input(self, block: Block, *terms: Term) -> Tensor:
        """Return da of pairs (dz, w): add every entry where it was read, the transpose of `seen`."""
        columns = products([(d, w.mT) for d, w in terms])
        p, k, s, n, size = block.padding, block.kernel, block.stride, block.out_size, block.size
        patches = columns.view(columns.shape[0], -1, n, n, k, k, block.inputs)
        whole = p + size + block.behind
        padded = columns.new_zeros(*patches.shape[:2], whole, whole, block.inputs)
        for i in range(k):
            for j in range(k):
                padded[:, :, i : i + s * n : s, j : j + s * n : s] += patches[:, :, :, :, i, j]
        return padded[:, :, p : p + size, p : p + size].flatten(1, 3)


class Whole(ByPatches):
    """Do the same for one task by PyTorch's own convolution, without patches, which are the largest arrays.

    For 75 pictures in the second block of Conv4, all three maps take 8 ms of a CPU, and 13 ms by patches.
    """

    def serves(self, block: Block) -> bool:
        """Return whether the padding is equal on both sides."""
        return (block.size + 2 * block.padding - block.kernel) // block.stride + 1 == block.out_size

    def seen(self, block: Block, a: Tensor) -> Tensor:
        return a

    def convolved(self, block: Block, *terms: Term) -> Tensor:
        how = None, block.stride, block.padding
        return added([_rows(F.conv2d(maps(a, block.size), _kernel(block, w), *how)) for a, w in terms])

    def to_weight(self, block: Block, *terms: Term) -> Tensor:
        how, shape = (block.stride, block.padding), (block.outputs, block.inputs, block.kernel, block.kernel)
        pairs = [(maps(a, block.size), maps(d, block.out_size)) for a, d in terms]
        found = [conv2d_weight(a, shape, d, *how) for a, d in pairs]  # type: ignore[no-untyped-call]
        return added(found).permute(2, 3, 1, 0).reshape(1, *block.weight.shape)

    def to_input(self, block: Block, *terms: Term) -> Tensor:
        left = (block.size + 2 * block.padding - block.kernel) % block.stride  # rows and columns in no patch
        how = None, block.stride, block.padding, left
        return added([_rows(F.conv_transpose2d(maps(d, block.out_size), _kernel(block, w), *how)) for d, w in terms])


def maps(rows: Tensor, size: int) -> Tensor:
    """Reshape (tasks, rows, channels) to (pictures of all tasks, channels, height, width), channels last in memory.

    Flatten first: PyTorch takes the layout from the stride of a single channel, which may be anything.
    """
    return rows.flatten().view(-1, size, size, rows.shape[-1]).permute(0, 3, 1, 2)


def _rows(found: Tensor) -> Tensor:
    return found.permute(0, 2, 3, 1).reshape(1, -1, found.shape[1])


def _kernel(block: Block, w: Tensor) -> Tensor:
    turned = w.view(block.kernel, block.kernel, block.inputs, block.outputs).permute(3, 2, 0, 1)
    return turned.contiguous(memory_format=torch.channels_last)


patches, whole = ByPatches(), Whole()
