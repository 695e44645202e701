"""Convolve for one task by PyTorch's own convolution, without patches, which are the largest arrays.

For 75 pictures in the second block of Conv4, all three maps take 8 ms of a CPU, and 13 ms by patches.
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from metastep.step.chain.bilinear import Term, added
from metastep.step.chain.chain import Block


def serves(block: Block) -> bool:
    """Return whether the padding is equal on both sides."""
    return (block.size + 2 * block.padding - block.kernel) // block.stride + 1 == block.out_size


def seen(block: Block, a: Tensor) -> Tensor:
    del block
    return a


def convolved(block: Block, *terms: Term) -> Tensor:
    how = None, block.stride, block.padding
    return added([_rows(F.conv2d(maps(a, block.size), _kernel(block, w), *how)) for a, w in terms])


def to_weight(block: Block, *terms: Term) -> Tensor:
    how, shape = (block.stride, block.padding), (block.outputs, block.inputs, block.kernel, block.kernel)
    pairs = [(maps(a, block.size), maps(d, block.out_size)) for a, d in terms]
    found = [conv2d_weight(a, shape, d, *how) for a, d in pairs]  # type: ignore[no-untyped-call]
    return added(found).permute(2, 3, 1, 0).reshape(1, *block.weight.shape)


def to_input(block: Block, *terms: Term) -> Tensor:
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
