"""A net that sees the mean of a few patches."""

from torch import nn

import metastep as ms


@ms.register("net", "patches")
def patches(ways: int, channels: int, size: int = 28, *, width: int = 16) -> nn.Module:
    """Apply a hidden layer and a linear head to the means of 4×4 patches.

    Args:
        ways: Classes.
        channels: Channels of a picture.
        size: Pixels along the side of a picture; any will do.
        width: Units of the hidden layer.
    """
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * channels, width), nn.Tanh(), nn.Linear(width, ways)
    )
