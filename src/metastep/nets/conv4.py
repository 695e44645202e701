"""The four-block convolutional net of few-shot learning."""

from collections.abc import Callable
from typing import get_args

import torch
from torch import Tensor, nn

from metastep.core.registry import register
from metastep.errors import MetastepError, require_positive
from metastep.nets.blocks import strided
from metastep.nets.head_init import HeadInit

Layer = nn.Conv2d | nn.Linear
Fill = Callable[[Tensor], Tensor]  # in place


@register("net", "conv4")
class Conv4(nn.Module):
    """Apply four blocks of 3×3 convolution (stride 2), BatchNorm on batch statistics and ReLU, then a linear head.

    28×28 pictures become 14, 7, 4, 2 wide; the head sees all 2×2 positions. 113,221 parameters at 5 ways.

    Args:
        ways: Classes.
        channels: Channels of a picture.
        filters: Channels of each convolution.
        size: Pixels along the side of a picture.
        head_init: How the head starts. It can decide whether anything is learned at a large inner rate.
        block: A function (number of the block, input channels, filters) that makes a block. `metastep.nets.published`
            has those of published code.
        init: Called with every convolution and the head, to give them their first values.
        mean_positions: Let the head see the mean over all positions.

    Raises:
        MetastepError: The pictures are too small, or a number is not above 0.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> ms.nets.Conv4(ways=5, filters=8)(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        ways: int,
        channels: int = 1,
        filters: int = 64,
        size: int = 28,
        head_init: HeadInit = "default",
        *,
        block: Callable[[int, int, int], nn.Module] = strided,
        init: Callable[[Layer], None] | None = None,
        mean_positions: bool = False,
    ) -> None:
        super().__init__()
        require_positive(ways=ways, channels=channels, filters=filters, size=size)
        self.mean_positions = mean_positions
        self.blocks = nn.Sequential(*(block(i, filters if i else channels, filters) for i in range(4)))
        self.head = nn.Linear(self._features(channels, size), ways)
        if init:
            start(self, init)
        start_head(self.head, head_init)  # last, so that the blocks start alike whatever the head does

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self._seen_by_head(x))  # type: ignore[no-any-return]

    def _seen_by_head(self, x: Tensor) -> Tensor:
        maps = self.blocks(x)
        return maps.mean((-2, -1)) if self.mean_positions else torch.flatten(maps, 1)

    @torch.no_grad()
    def _features(self, channels: int, size: int) -> int:
        """Return how many numbers the head sees, by a call: BatchNorm needs two pictures."""
        try:
            return self._seen_by_head(torch.zeros(2, channels, size, size)).shape[1]
        except RuntimeError as error:
            raise MetastepError(
                f"pictures of {size}×{size} are too small for the four blocks of this net ({error}). "
                "Make them larger, or choose a net that pads."
            ) from error


def layer_init(weight: Fill, bias: Fill = nn.init.zeros_) -> Callable[[Layer], None]:
    def init(layer: Layer) -> None:
        weight(layer.weight)
        if layer.bias is not None:
            bias(layer.bias)

    return init


normal = layer_init(nn.init.normal_)
xavier = layer_init(nn.init.xavier_uniform_)
kaiming = layer_init(nn.init.kaiming_normal_)  # fan-in, gain √2

HEADS: dict[str, Callable[[Layer], None]] = {
    "zero": layer_init(nn.init.zeros_),
    "normal": normal,
    "xavier": xavier,
    "kaiming": kaiming,
}


def start(module: nn.Module, init: Callable[[Layer], None]) -> None:
    for part in module.modules():
        if isinstance(part, (nn.Conv2d, nn.Linear)):
            init(part)


def start_head(head: nn.Linear, how: HeadInit) -> None:
    if how not in get_args(HeadInit):
        raise MetastepError(f"head_init = {how!r}: choose one of {', '.join(get_args(HeadInit))}.")
    if how != "default":
        HEADS[how](head)
