"""What the published variants of Conv4 are built of; the registry says which is whose."""

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, pad


class SamePad(nn.Module):
    """TensorFlow's SAME for a 3×3 convolution of stride 2: (0, 1) where the input is even, (1, 1) where it is odd.

    `padding=1` gives the same sizes, but on even inputs a grid that is shifted by one pixel.
    """

    @staticmethod
    def around(size: int) -> tuple[int, int]:
        """Zeros before and behind"""
        return size % 2, 1

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        return pad(x, (*self.around(width), *self.around(height)))


class ShiftNorm(nn.Module):
    """Normalisation by the batch at hand, then a shift β for each channel, and no scale γ.

    Finn's code meta-trains β and does not adapt it: `adapt_only(problem, lambda name: "shift" not in name)`.
    """

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return batch_norm(x, None, None, training=True, eps=self.eps) + self.shift[:, None, None]


def norm(channels: int, eps: float = 1e-5) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=eps, track_running_stats=False)


# Blocks: (which of the four, from 0; input channels; filters). TensorFlow's BatchNorm has ε = 1e-3, PyTorch's 1e-5.


def strided(i: int, inputs: int, filters: int) -> nn.Sequential:
    del i
    return nn.Sequential(nn.Conv2d(inputs, filters, 3, stride=2, padding=1), norm(filters), nn.ReLU())


def strided_same(i: int, inputs: int, filters: int) -> nn.Sequential:
    del i
    return nn.Sequential(SamePad(), nn.Conv2d(inputs, filters, 3, stride=2), norm(filters, 1e-3), nn.ReLU())


def strided_same_shift(i: int, inputs: int, filters: int) -> nn.Sequential:
    del i
    return nn.Sequential(SamePad(), nn.Conv2d(inputs, filters, 3, stride=2), ShiftNorm(filters, 1e-3), nn.ReLU())


def strided_extra_row(i: int, inputs: int, filters: int) -> nn.Sequential:
    """The third convolution sees one more row and column of zeros: 7 becomes 8, and then 4 as without them."""
    extra = nn.ZeroPad2d((0, 1, 0, 1)) if i == 2 else nn.Identity()
    return nn.Sequential(extra, *strided(i, inputs, filters))


def strided_unpadded(i: int, inputs: int, filters: int) -> nn.Sequential:
    """28 → 13 → 6 → 2 → 1: the last convolution is 2×2; ReLU before BatchNorm"""
    kernel, stride = (3, 2) if i < 3 else (2, 1)
    return nn.Sequential(nn.Conv2d(inputs, filters, kernel, stride=stride), nn.ReLU(), norm(filters))


def pooled_shift(i: int, inputs: int, filters: int) -> nn.Sequential:
    """84 → 42 → 21 → 10 → 5"""
    del i
    return nn.Sequential(nn.Conv2d(inputs, filters, 3, padding=1), ShiftNorm(filters, 1e-3), nn.ReLU(), nn.MaxPool2d(2))


def pooled_unpadded(i: int, inputs: int, filters: int) -> nn.Sequential:
    """84 → 41 → 19 → 8 → 5: the last pooling has stride 1; ReLU before BatchNorm"""
    return nn.Sequential(
        nn.Conv2d(inputs, filters, 3), nn.ReLU(), norm(filters), nn.MaxPool2d(2, stride=2 if i < 3 else 1)
    )


def pooled_same(i: int, inputs: int, filters: int) -> nn.Sequential:
    """84 → 42 → 21 → 11 → 6: pooling keeps the odd edge, as TensorFlow's SAME does; ReLU after it"""
    del i
    return nn.Sequential(
        nn.Conv2d(inputs, filters, 3, padding=1), norm(filters, 1e-3), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()
    )
