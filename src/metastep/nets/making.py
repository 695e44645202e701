"""Build a net, and try it once: a user's own may fail in any way, and must do so before a run begins."""

from typing import Any

import torch
from torch import nn

from metastep.errors import MetastepError, first_line
from metastep.nets.registry import Builder, load_net


def build(name: str, *, ways: int, channels: int, size: int, **options: Any) -> nn.Module:
    """Return a new net by its registered name.

    Args:
        name: A registered name, such as "conv4".
        ways: Classes.
        channels: Channels of a picture.
        size: Pixels along the side of a picture.
        options: Options of that net, by name.

    Returns:
        The module. Its first values are drawn by PyTorch's generator.

    Raises:
        MetastepError: There is no such net, or it cannot be built from these arguments.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> net = ms.nets.build("conv4", ways=5, channels=1, size=28, filters=8)
        >>> net(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 5])
    """
    return made(name, load_net(name), ways=ways, channels=channels, size=size, **options)


def made(name: str, builder: Builder, **given: Any) -> nn.Module:
    try:
        net = builder(**given)
    except Exception as error:
        raise MetastepError(
            f"net {name!r} could not be built: {first_line(error)} ({type(error).__name__}). It is called with "
            f"{', '.join(given)}."
        ) from error
    if not isinstance(net, nn.Module):
        raise MetastepError(f"net {name!r} gives a {type(net).__name__}, no nn.Module. Let it return the module.")
    return net


@torch.no_grad()
def require_answers(net: nn.Module, name: str, shape: tuple[int, int, int], classes: int) -> None:
    """Call the net once on pictures of this shape, which also makes the parameters of lazy layers."""
    cannot = f"net {name!r} cannot be used on pictures of {'×'.join(map(str, shape))}"
    try:
        answer = net(torch.zeros(2, *shape))
    except Exception as error:
        raise MetastepError(f"{cannot}: {first_line(error)} ({type(error).__name__}). Repair that module.") from error
    if not isinstance(answer, torch.Tensor) or answer.shape != (2, classes):
        got = tuple(answer.shape) if isinstance(answer, torch.Tensor) else type(answer).__name__
        raise MetastepError(f"{cannot}: for 2 of them it gives {got}, not (2, {classes}): one number per class.")
