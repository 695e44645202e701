"""What the published variants of Conv4 are built of; the registry says which is whose."""

from torch import nn

from metastep.core.layers import SamePad, ShiftNorm


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
