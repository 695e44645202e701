"""Convolve for many tasks at once: collect their patches (im2col) for one batched product."""

from torch import Tensor
from torch.nn import functional as F

from metastep.step.chain.bilinear import Term, products
from metastep.step.chain.chain import Block


def seen(block: Block, a: Tensor) -> Tensor:
    """Return the patch of each output position: (tasks, rows, kernel · kernel · channels)."""
    (p, q), k, s, n = (block.padding, block.behind), block.kernel, block.stride, block.size
    pictures = a.view(a.shape[0], -1, n, n, block.inputs)
    patches = F.pad(pictures, (0, 0, p, q, p, q)).unfold(2, k, s).unfold(3, k, s)
    return patches.permute(0, 1, 2, 3, 5, 6, 4).reshape(a.shape[0], -1, k * k * block.inputs)


def convolved(block: Block, *terms: Term) -> Tensor:
    del block
    return products(terms)


def to_weight(block: Block, *terms: Term) -> Tensor:
    del block
    return products([(columns.mT, d) for columns, d in terms])


def to_input(block: Block, *terms: Term) -> Tensor:
    """Add every entry at the position that it was read from: the transpose of `seen`."""
    columns = products([(d, w.mT) for d, w in terms])
    p, k, s, n, size = block.padding, block.kernel, block.stride, block.out_size, block.size
    patches = columns.view(columns.shape[0], -1, n, n, k, k, block.inputs)
    whole = p + size + block.behind
    padded = columns.new_zeros(*patches.shape[:2], whole, whole, block.inputs)
    for i in range(k):
        for j in range(k):
            padded[:, :, i : i + s * n : s, j : j + s * n : s] += patches[:, :, :, :, i, j]
    return padded[:, :, p : p + size, p : p + size].flatten(1, 3)
