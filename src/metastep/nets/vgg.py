"""VGG with BatchNorm: stages of 3×3 convolutions, each stage ending with max-pooling."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from metastep.core.registry import register
from metastep.errors import MetastepError, require_positive
from metastep.nets.resnet import start_convolutions

VGG9 = ((64,), (128,), (256, 256), (512, 512), (512, 512))


class _BeforeNorm(nn.Conv2d):
    """Convolve, with a bias that has no gradient in training: BatchNorm subtracts it again.

    Autograd would add up all numbers of the gradient to 0, and leave rounding errors.
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
