"""Define the convolutional net of four blocks that few-shot learning uses, and its published variants."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from metastep.core.modules import SamePad, ShiftNorm
from metastep.core.registry import register
from metastep.errors import MetastepError, require_positive

HeadInit = Literal["default", "zero", "normal", "xavier", "kaiming"]
Norm = Callable[[int, float], nn.Module]


def norm(channels: int, eps: float = 1e-5) -> nn.BatchNorm2d:
    """Return a BatchNorm that always normalises by the statistics of the batch."""
    return nn.BatchNorm2d(channels, eps=eps, track_running_stats=False)


# Arguments of a block: its number (0 to 3), input channels, filters. The ε of BatchNorm is 1e-3 in TensorFlow, 1e-5
# in PyTorch.


def strided(i: int, inputs: int, filters: int) -> nn.Sequential:
    del i
    return nn.Sequential(nn.Conv2d(inputs, filters, 3, stride=2, padding=1), norm(filters), nn.ReLU())


def strided_same(i: int, inputs: int, filters: int, norm: Norm = norm) -> nn.Sequential:
    del i
    return nn.Sequential(SamePad(), nn.Conv2d(inputs, filters, 3, stride=2), norm(filters, 1e-3), nn.ReLU())


def strided_extra_row(i: int, inputs: int, filters: int) -> nn.Sequential:
    """Pad the input of the third convolution by one more row and column of zeros. 7 becomes 8; the output stays 4."""
    extra = nn.ZeroPad2d((0, 1, 0, 1)) if i == 2 else nn.Identity()
    return nn.Sequential(extra, *strided(i, inputs, filters))


def strided_unpadded(i: int, inputs: int, filters: int) -> nn.Sequential:
    """Convolve without padding: 28 → 13 → 6 → 2 → 1. The last convolution is 2×2. ReLU comes before BatchNorm."""
    kernel, stride = (3, 2) if i < 3 else (2, 1)
    return nn.Sequential(nn.Conv2d(inputs, filters, kernel, stride=stride), nn.ReLU(), norm(filters))


def pooled_shift(i: int, inputs: int, filters: int) -> nn.Sequential:
    """Convolve and pool: 84 → 42 → 21 → 10 → 5."""
    del i
    return nn.Sequential(nn.Conv2d(inputs, filters, 3, padding=1), ShiftNorm(filters, 1e-3), nn.ReLU(), nn.MaxPool2d(2))


def pooled_unpadded(i: int, inputs: int, filters: int) -> nn.Sequential:
    """Convolve without padding: 84 → 41 → 19 → 8 → 5. The last pooling has stride 1. ReLU comes before BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(inputs, filters, 3), nn.ReLU(), norm(filters), nn.MaxPool2d(2, stride=2 if i < 3 else 1)
    )


def pooled_same(i: int, inputs: int, filters: int) -> nn.Sequential:
    """Pool with the odd edge kept, as TensorFlow's SAME does: 84 → 42 → 21 → 11 → 6. ReLU comes after pooling."""
    del i
    return nn.Sequential(
        nn.Conv2d(inputs, filters, 3, padding=1), norm(filters, 1e-3), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()
    )


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
        block: A function (number of the block, input channels, filters) that makes a block. `metastep.nets.conv4`
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
        start_head(self.head, head_init)  # last: the values of the blocks must not depend on it

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self._seen_by_head(x))  # type: ignore[no-any-return]

    def _seen_by_head(self, x: Tensor) -> Tensor:
        maps = self.blocks(x)
        return maps.mean((-2, -1)) if self.mean_positions else torch.flatten(maps, 1)

    @torch.no_grad()
    def _features(self, channels: int, size: int) -> int:
        """Return the number of inputs of the head. Find it by a call with two pictures, which BatchNorm needs."""
        try:
            return self._seen_by_head(torch.zeros(2, channels, size, size)).shape[1]
        except RuntimeError as error:
            raise MetastepError(
                f"pictures of {size}×{size} are too small for the four blocks of this net ({error}). "
                "Make them larger, or choose a net that pads."
            ) from error


def layer_init(weight: Fill, bias: Fill = nn.init.zeros_) -> Callable[[Layer], None]:
    """Return a function that initialises the weight and the bias of a layer."""

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
    """Initialise every convolution and linear layer."""
    for part in module.modules():
        if isinstance(part, (nn.Conv2d, nn.Linear)):
            init(part)


def start_head(head: nn.Linear, how: HeadInit) -> None:
    """Initialise the head. "default" keeps PyTorch's values."""
    if how not in get_args(HeadInit):
        raise MetastepError(f"head_init = {how!r}: choose one of {', '.join(get_args(HeadInit))}.")
    if how != "default":
        HEADS[how](head)


# ---- the nets of published code: other blocks and another initialisation


_MINI: dict[str, Any] = {"channels": 3, "filters": 32, "size": 84}


def _xavier_normal_head(layer: Layer) -> None:
    (normal if isinstance(layer, nn.Linear) else xavier)(layer)


# Finn et al. 2017. Their code meta-trains β and does not adapt it: see ShiftNorm.
register("net", "finn_omniglot")(
    partial(Conv4, block=partial(strided_same, norm=ShiftNorm), init=_xavier_normal_head, mean_positions=True)
)
register("net", "finn_mini")(partial(Conv4, **_MINI, block=pooled_shift, init=xavier))

# MAML-Pytorch. The paper on multi-step estimation builds on it.
register("net", "dragen_omniglot")(partial(Conv4, block=strided_unpadded, init=kaiming))
register("net", "dragen_mini")(partial(Conv4, **_MINI, block=pooled_unpadded, init=kaiming))

# Nichol et al. 2018.
register("net", "reptile_omniglot")(partial(Conv4, block=strided_same, init=xavier))
register("net", "reptile_mini")(partial(Conv4, **_MINI, block=pooled_same, init=xavier))

# Rajeswaran et al. 2019.
_narrow_uniform = layer_init(partial(nn.init.xavier_uniform_, gain=1.73), partial(nn.init.uniform_, a=0.0, b=0.05))
register("net", "imaml_omniglot")(partial(Conv4, block=strided_extra_row, init=_narrow_uniform))
