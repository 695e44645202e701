"""The convolution of a block, z = conv(a, w), and what dz is to w and to a: three bilinear maps.

Each adds up any number of pairs: its derivative has two, by the product rule. Arrays are (tasks, rows, channels), where
positions of all pictures of a task are rows. Many tasks are multiplied as patches (im2col), in one batched product. For
one task on a CPU there is PyTorch's convolution, and no patches, which would be the largest array of all: 75 pictures
through the second block of Conv4 take 8 ms by all three maps instead of 13.
"""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from metastep.fused.chain import Block

Term = tuple[Tensor, Tensor]


def seen_by(block: Block, a: Tensor) -> Tensor:
    """What the maps read of a: its patches, or itself"""
    return a if _alone(block, a) else to_columns(block, a)


def convolved(block: Block, *terms: Term) -> Tensor:
    """z of pairs (what is seen of a, w)"""
    if not _alone(block, terms[0][0]):
        return products(terms)
    how = None, block.stride, block.padding
    return _total([_rows(F.conv2d(_maps(a, block.size), _kernel(block, w), *how)) for a, w in terms])


def to_weight(block: Block, *terms: Term) -> Tensor:
    """dw of pairs (what is seen of a, dz)"""
    if not _alone(block, terms[0][0]):
        return products([(seen.mT, d) for seen, d in terms])
    how = block.stride, block.padding
    shape = block.outputs, block.inputs, block.kernel, block.kernel
    pairs = [(_maps(a, block.size), _maps(d, block.out_size)) for a, d in terms]
    found = [conv2d_weight(a, shape, d, *how) for a, d in pairs]  # type: ignore[no-untyped-call]
    return _total(found).permute(2, 3, 1, 0).reshape(1, *block.weight.shape)


def to_input(block: Block, *terms: Term) -> Tensor:
    """da of pairs (dz, w)"""
    if not _alone(block, terms[0][0]):
        return from_columns(block, products([(d, w.mT) for d, w in terms]))
    left = (block.size + 2 * block.padding - block.kernel) % block.stride  # rows and columns that no patch sees
    how = None, block.stride, block.padding, left
    return _total([_rows(F.conv_transpose2d(_maps(d, block.out_size), _kernel(block, w), *how)) for d, w in terms])


def products(terms: Sequence[Term]) -> Tensor:
    """Σ ab of pairs, for each task"""
    (a, b), *rest = terms
    return reduce(lambda total, term: total.baddbmm_(*term), rest, torch.bmm(a, b))


def to_columns(block: Block, a: Tensor) -> Tensor:
    """The patch that each output position sees: (tasks, rows, kernel · kernel · channels)"""
    (p, q), k, s, n = (block.padding, block.behind), block.kernel, block.stride, block.size
    pictures = a.view(a.shape[0], -1, n, n, block.inputs)
    patches = F.pad(pictures, (0, 0, p, q, p, q)).unfold(2, k, s).unfold(3, k, s)
    return patches.permute(0, 1, 2, 3, 5, 6, 4).reshape(a.shape[0], -1, k * k * block.inputs)


def from_columns(block: Block, columns: Tensor) -> Tensor:
    """The transpose of `to_columns`: every entry is added where it was read"""
    p, k, s, n, size = block.padding, block.kernel, block.stride, block.out_size, block.size
    patches = columns.view(columns.shape[0], -1, n, n, k, k, block.inputs)
    whole = p + size + block.behind
    padded = columns.new_zeros(*patches.shape[:2], whole, whole, block.inputs)
    for i in range(k):
        for j in range(k):
            padded[:, :, i : i + s * n : s, j : j + s * n : s] += patches[:, :, :, :, i, j]
    return padded[:, :, p : p + size, p : p + size].flatten(1, 3)


def _alone(block: Block, x: Tensor) -> bool:
    """One task on a CPU, with as many zeros behind as before"""
    as_ours = (block.size + 2 * block.padding - block.kernel) // block.stride + 1 == block.out_size
    return len(x) == 1 and x.device.type == "cpu" and as_ours


def _maps(rows: Tensor, size: int) -> Tensor:
    """The pictures of one task, (pictures, channels, height, width), with channels last in memory

    Flat first: the stride of a single channel may be any, but tells PyTorch which layout it is.
    """
    return rows.flatten().view(-1, size, size, rows.shape[-1]).permute(0, 3, 1, 2)


def _rows(maps: Tensor) -> Tensor:
    return maps.permute(0, 2, 3, 1).reshape(1, -1, maps.shape[1])


def _kernel(block: Block, w: Tensor) -> Tensor:
    """The weight of one task as PyTorch has it"""
    turned = w.view(block.kernel, block.kernel, block.inputs, block.outputs).permute(3, 2, 0, 1)
    return turned.contiguous(memory_format=torch.channels_last)


def _total(parts: list[Tensor]) -> Tensor:
    return reduce(torch.Tensor.add_, parts)
