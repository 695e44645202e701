"""Two layers that published nets need and torch.nn lacks. The hand-written derivatives support both."""

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, pad


class SamePad(nn.Module):
    """TensorFlow's SAME for a 3×3 convolution of stride 2: (0, 1) where the input is even, (1, 1) where it is odd.

    `padding=1` gives the same sizes, but on even inputs a grid that is shifted by one pixel.
    """

    @staticmethod
    def around(size: int) -> tuple[int, int]:
        """Return the number of zeros before and behind."""
        return size % 2, 1

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        return pad(x, (*self.around(width), *self.around(height)))


class ShiftNorm(nn.Module):
    """Normalise by the statistics of the batch, then add a shift β for each channel, and no scale γ.

    Finn's code meta-trains β and does not adapt it: `adapt_only(problem, lambda name: "shift" not in name)`.
    """

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return batch_norm(x, None, None, training=True, eps=self.eps) + self.shift[:, None, None]
