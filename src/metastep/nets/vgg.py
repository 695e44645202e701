"""VGG with BatchNorm: stages of 3×3 convolutions, each stage ending with max-pooling."""

from collections.abc import Sequence

from torch import Tensor, nn

from metastep.errors import MetastepError, require_positive
from metastep.nets.resnet import start_convolutions

VGG9 = ((64,), (128,), (256, 256), (512, 512), (512, 512))


class _BeforeNorm(nn.Conv2d):
    """A convolution whose bias has no gradient in training: BatchNorm takes it away again.

    Autograd would sum up 0 from all of the gradient's numbers, and leave rounding.
    """

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias.detach() if self.training and self.bias is not None else self.bias
        return self._conv_forward(x, self.weight, bias)  # type: ignore[no-any-return]


class VGG(nn.Module):
    """Convolution (with bias), BatchNorm, ReLU for each number of filters in each stage; mean, linear head, no dropout.

    The default is VGG-9-BN, 9,277,284 parameters at 100 ways; fewer or narrower stages make a small target.
    `taps` are the tensors that enter the max-poolings; at 32×32: 64×32², 128×16², 256×8², 512×4², 512×2².
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
