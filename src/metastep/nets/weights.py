"""Weights of a net from a local file: safetensors, or what torch.save wrote (.pth, .pt), as torchvision's are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from metastep.errors import MetastepError

_COUNTER = "num_batches_tracked"  # weights from before PyTorch 1.0 lack it, and BatchNorm seldom needs it


class MisfitError(MetastepError):
    """Report weights of another net: the first tensor that differs, and its shapes in the file and in the net."""

    def __init__(self, what: str, name: str, stored: tuple[int, ...] | None, own: tuple[int, ...] | None) -> None:
        self.name, self.stored, self.own = name, stored, own
        remedy = "Choose the net that they were saved from, or leave names out (a head with other classes: 'fc')."
        super().__init__(f"{what}: {self.reason}. {remedy}")

    @property
    def reason(self) -> str:
        if self.stored is None:
            return f"it has no {self.name!r}"
        if self.own is None:
            return f"the net has no {self.name!r}"
        return f"{self.name!r} is {self.stored} in the file and {self.own} in the net"


def load_weights(net: nn.Module, path: str | Path, leave_out: Sequence[str] = ()) -> nn.Module:
    """Load the weights in a file into a net, all of them.

    A pickle that could run code is not opened.

    Args:
        net: Changed in place.
        path: A .safetensors, .pth or .pt file.
        leave_out: How names begin that keep the values they have, such as "fc" for a head with other classes.

    Returns:
        The same net.

    Raises:
        MetastepError: The file cannot be read, or belongs to another net; the message names the first difference.

    Example:
        >>> import tempfile
        >>> import torch
        >>> import metastep as ms
        >>> net = torch.nn.Linear(2, 1)
        >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        ...     torch.save({"weight": torch.ones(1, 2), "bias": torch.zeros(1)}, file.name)
        ...     print(ms.nets.load_weights(net, file.name).weight.detach())
        tensor([[1., 1.]])
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
    for name in [name for name in own if name not in stored] + list(stored):
        got, needed = (tuple(side[name].shape) if name in side else None for side in (stored, own))
        if got != needed and not (got is None and name.endswith(_COUNTER)):
            raise MisfitError(what, name, got, needed)


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
