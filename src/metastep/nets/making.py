"""A net made by its builder; one of a user's own may fail in any way, and is to say so before there is a run."""

from typing import Any

import torch
from torch import nn

from metastep.errors import MetastepError, first_line
from metastep.nets.registry import Builder


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
    """Called once on pictures of this shape; parameters of lazy layers are made by this"""
    cannot = f"net {name!r} cannot be used on pictures of {'×'.join(map(str, shape))}"
    try:
        answer = net(torch.zeros(2, *shape))
    except Exception as error:
        raise MetastepError(f"{cannot}: {first_line(error)} ({type(error).__name__}). Repair that module.") from error
    if not isinstance(answer, torch.Tensor) or answer.shape != (2, classes):
        got = tuple(answer.shape) if isinstance(answer, torch.Tensor) else type(answer).__name__
        raise MetastepError(f"{cannot}: for 2 of them it gives {got}, not (2, {classes}): one number per class.")
