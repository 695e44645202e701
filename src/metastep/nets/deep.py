"""Define nets for labelled pictures: ResNet-18, ResNet-34, ResNet-32 and VGG with BatchNorm.

Their parameters are named as in published checkpoints, so that those load.
"""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn.functional import relu

from metastep.core.registry import register
from metastep.errors import MetastepError, require_positive


class BasicBlock(nn.Module):
    """Return relu(x + two 3×3 convolutions of x). A new shape needs a 1×1 convolution and BatchNorm of x."""

    def __init__(self, inputs: int, filters: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, filters, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.downsample = None
        if stride > 1 or inputs != filters:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, filters, 1, stride, bias=False), nn.BatchNorm2d(filters))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        return relu(shortcut + self.bn2(self.conv2(relu(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    """Apply a 7×7 stem and max-pooling, four stages of basic blocks with 64 to 512 filters, mean, and a linear head.

    It is made for pictures of 224×224 and has torchvision's parameter names, so that torchvision's weights load.

    Args:
        ways: Classes.
        channels: Channels of a picture.
        size: Pixels along the side of a picture.
        blocks: Basic blocks in each stage: ResNet-18 has (2, 2, 2, 2), and ResNet-34 (3, 4, 6, 3).

    Raises:
        MetastepError: A number is not above 0.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> ms.nets.ResNet(ways=5, blocks=(1, 1, 1, 1))(torch.rand(2, 3, 64, 64)).shape
        torch.Size([2, 5])
    """

    taps = ("layer1", "layer2", "layer3", "layer4")  # at 224×224: 64×56², 128×28², 256×14², 512×7²

    def __init__(
        self, ways: int, channels: int = 3, size: int = 224, *, blocks: tuple[int, int, int, int] = (2, 2, 2, 2)
    ) -> None:
        super().__init__()
        require_positive(ways=ways, channels=channels, size=size)
        self.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(64, 64, blocks[0], stride=1)
        self.layer2 = _stage(64, 128, blocks[1], stride=2)
        self.layer3 = _stage(128, 256, blocks[2], stride=2)
        self.layer4 = _stage(256, 512, blocks[3], stride=2)
        self.fc = nn.Linear(512, ways)
        start_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((-2, -1)))  # type: ignore[no-any-return]


def _stage(inputs: int, filters: int, blocks: int, stride: int) -> nn.Sequential:
    """Return basic blocks. The first one has the stride."""
    return nn.Sequential(BasicBlock(inputs, filters, stride), *_rest(filters, blocks))


def start_convolutions(module: nn.Module) -> None:
    """Draw the weights of convolutions from N(0, 2 / (k² · filters)), and set their biases to 0."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)


ResNet18 = register("net", "resnet18")(partial(ResNet, blocks=(2, 2, 2, 2)))
ResNet34 = register("net", "resnet34")(partial(ResNet, blocks=(3, 4, 6, 3)))


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
    """Return the blocks of a stage after its first."""
    return nn.Sequential(*(BasicBlock(filters, filters) for _ in range(blocks - 1)))


register("net", "resnet8")(partial(ResNet32, blocks=1))  # for small pictures and two CPU cores


VGG9 = ((64,), (128,), (256, 256), (512, 512), (512, 512))


class _BeforeNorm(nn.Conv2d):
    """Convolve with a bias that has no gradient in training, because BatchNorm subtracts it again.

    The true gradient is 0. Autograd would sum up rounding errors instead.
    """

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias.detach() if self.training and self.bias is not None else self.bias
        return self._conv_forward(x, self.weight, bias)  # type: ignore[no-any-return]


@register("net", "vgg9")
class VGG(nn.Module):
    """Apply stages of convolution, BatchNorm and ReLU, each ending with max-pooling, then the mean and a linear head.

    The default is VGG-9-BN, 9,277,284 parameters at 100 ways. Fewer or narrower stages make a small target.
    `taps` are the tensors that enter the max-poolings; at 32×32: 64×32², 128×16², 256×8², 512×4², 512×2².

    Args:
        ways: Classes.
        channels: Channels of a picture.
        size: Pixels along the side of a picture.
        stages: Filters of each convolution of each stage.

    Raises:
        MetastepError: The pictures are too small for so many stages, or a number is not above 0.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> ms.nets.VGG(ways=5, stages=((8,), (16,)))(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 5])
    """

    def __init__(self, ways: int, channels: int = 3, size: int = 32, *, stages: Sequence[Sequence[int]] = VGG9) -> None:
        super().__init__()
        require_positive(ways=ways, channels=channels, size=size)
        if size < 2 ** len(stages):
            raise MetastepError(
                f"pictures of {size}×{size} are too small for {len(stages)} max-poolings, which need "
                f"{2 ** len(stages)}×{2 ** len(stages)}. Make them larger, or choose a net with fewer stages."
            )
        layers: list[nn.Module] = []
        taps: list[str] = []
        for stage in stages:
            for filters in stage:
                layers += [_BeforeNorm(channels, filters, 3, padding=1), nn.BatchNorm2d(filters), nn.ReLU()]
                channels = filters
            taps.append(f"features.{len(layers) - 1}")
            layers.append(nn.MaxPool2d(2))
        self.taps = tuple(taps)
        self.features = nn.Sequential(*layers)
        self.fc = nn.Linear(channels, ways)
        start_convolutions(self)
        nn.init.normal_(self.fc.weight, std=0.01)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x).mean((-2, -1)))  # type: ignore[no-any-return]


# for small pictures and two CPU cores
register("net", "vgg4")(partial(VGG, stages=((16,), (32,), (64,))))
register("net", "vgg7")(partial(VGG, stages=((16,), (32,), (64, 64), (64, 64))))
