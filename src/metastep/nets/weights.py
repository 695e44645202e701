"""Weights of a net from a local file: safetensors, or what torch.save wrote (.pth, .pt), as torchvision's are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from metastep.errors import MetastepError

_COUNTER = "num_batches_tracked"  # weights from before PyTorch 1.0 lack it, and BatchNorm seldom needs it


def load_weights(net: nn.Module, path: str | Path, leave_out: Sequence[str] = ()) -> nn.Module:
    """Give `net` the weights in the file `path`, every one of them; returns it.

    leave_out: beginnings of names that keep what they have, such as "fc" for a head with another number of classes.
    """
    stored = _kept(_read(Path(path)), leave_out)
    own = _kept(net.state_dict(), leave_out)
    _require_fit(stored, own, f"{path} does not fit {type(net).__name__}")
    net.load_state_dict(stored, strict=False)
    return net


def _kept(tensors: Mapping[str, Any], leave_out: Sequence[str]) -> dict[str, Tensor]:
    prefixes = tuple(leave_out)
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(prefixes)}


def _require_fit(stored: Mapping[str, Tensor], own: Mapping[str, Tensor], what: str) -> None:
    remedy = "Choose the net that they were saved from, or leave names out (a head with other classes: 'fc')."
    for name in own:
        if name not in stored and not name.endswith(_COUNTER):
            raise MetastepError(f"{what}: it has no {name!r}. {remedy}")
    for name, tensor in stored.items():
        if name not in own:
            raise MetastepError(f"{what}: the net has no {name!r}. {remedy}")
        if tensor.shape != own[name].shape:
            got, needed = tuple(tensor.shape), tuple(own[name].shape)
            raise MetastepError(f"{what}: {name!r} is {got} in the file and {needed} in the net. {remedy}")


def _read(path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise MetastepError(f"there is no weights file {path}. Give the path of a .safetensors, .pth or .pt file.")
    try:
        # weights_only: a pickle could run any code, and this file may come from anywhere
        stored = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # what is not a pickle makes its reader fail in any way
        raise MetastepError(f"{path} cannot be read as weights ({error}). Fetch or save it again.") from error
    if not (isinstance(stored, Mapping) and all(isinstance(tensor, Tensor) for tensor in stored.values())):
        raise MetastepError(f"{path} does not hold tensors by name. Save module.state_dict() alone.")
    return stored
