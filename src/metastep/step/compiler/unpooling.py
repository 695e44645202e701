"""The gradient of a max-pooling as a choice.

In general each number of dy is added to where its maximum was found. Where windows are side by side every pixel is in
one of them, and dx is dy of its window or 0: nothing is added up, and the choice becomes a part of whatever reads it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def max_pool2d_with_indices_backward(
    dy: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], ceil_mode: bool, indices: Tensor,
) -> Any:  # fmt: skip
    """As PyTorch's, and NotImplemented where windows overlap, are apart or stand over the edge"""
    del ceil_mode  # without an edge it is all the same
    (rows, columns), (height, width) = dy.shape[-2:], _both(kernel)
    tiled = x.shape[-2:] == (rows * height, columns * width) and _both(stride or kernel) == (height, width)
    if not tiled or any(padding) or _both(dilation) != (1, 1):
        return NotImplemented
    pixels = torch.arange(rows * height * columns * width, device=x.device).view(rows, height, columns, width)
    windows = (*dy.shape[:-2], rows, 1, columns, 1)
    return torch.where(indices.reshape(windows) == pixels, dy.reshape(windows), 0.0).reshape(x.shape)


def _both(sides: Sequence[int]) -> tuple[int, int]:
    return sides[0], sides[-1]
