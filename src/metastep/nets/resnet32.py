"""The residual net for 32×32 pictures, with the parameter names of L2T-ww's TinyImageNet checkpoint."""

from functools import partial

from torch import Tensor, nn
from torch.nn.functional import relu

from metastep.core.registry import register
from metastep.errors import require_positive
from metastep.nets.resnet import BasicBlock, start_convolutions


@register("net", "resnet32")
class ResNet32(nn.Module):
    """Apply a convolution, three stages of basic blocks with 1, 2 and 4 times `width` filters, mean, and a linear head.

    With 5 blocks of width 16 it is ResNet-32: 479,272 parameters at 200 ways. Fewer blocks make a small source.

    Args:
        ways: Classes.
        channels: Channels of a picture.
        size: Pixels along the side of a picture.
        blocks: Basic blocks in each stage.
        width: Filters of the first stage.

    Raises:
        MetastepError: A number is not above 0.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> ms.nets.ResNet32(ways=5, blocks=1)(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 5])
    """

    taps = ("blocks2", "blocks4", "blocks6")  # the ends of the stages; at 32×32: 16×32², 32×16², 64×8²

    def __init__(self, ways: int, channels: int = 3, size: int = 32, *, blocks: int = 5, width: int = 16) -> None:
        super().__init__()
        require_positive(ways=ways, channels=channels, size=size, blocks=blocks, width=width)
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.block1, self.blocks2 = BasicBlock(width, width), _rest(width, blocks)
        self.block3, self.blocks4 = BasicBlock(width, 2 * width, stride=2), _rest(2 * width, blocks)
        self.block5, self.blocks6 = BasicBlock(2 * width, 4 * width, stride=2), _rest(4 * width, blocks)
        self.fc = nn.Linear(4 * width, ways)
        start_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.bn1(self.conv1(x)))
        x = self.blocks2(self.block1(x))
        x = self.blocks4(self.block3(x))
        x = self.blocks6(self.block5(x))
        return self.fc(x.mean((-2, -1)))  # type: ignore[no-any-return]


def _rest(filters: int, blocks: int) -> nn.Sequential:
    return nn.Sequential(*(BasicBlock(filters, filters) for _ in range(blocks - 1)))


register("net", "resnet8")(partial(ResNet32, blocks=1))  # for small pictures and two CPU cores
