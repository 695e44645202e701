"""ResNet-18 and ResNet-34 for pictures of 224×224, with torchvision's parameter names, so that its weights load."""

from functools import partial

from torch import Tensor, nn
from torch.nn.functional import relu

from metastep.core.registry import register
from metastep.errors import require_positive


class BasicBlock(nn.Module):
    """Return relu(x + two 3×3 convolutions of x). If the shape changes, x passes a 1×1 convolution and BatchNorm."""

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
    return nn.Sequential(
        BasicBlock(inputs, filters, stride), *(BasicBlock(filters, filters) for _ in range(blocks - 1))
    )


def start_convolutions(module: nn.Module) -> None:
    """Draw the weights of convolutions from N(0, 2 / (k² · filters)), and set their biases to 0."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)


ResNet18 = register("net", "resnet18")(partial(ResNet, blocks=(2, 2, 2, 2)))
ResNet34 = register("net", "resnet34")(partial(ResNet, blocks=(3, 4, 6, 3)))
