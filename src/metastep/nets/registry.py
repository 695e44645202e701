"""Find nets by name, build them, call them once, and load weights into them. A user's own net is imported, too.

A net is a class or function. It takes ways=, channels=, size= and its own options, and returns a module. The module
maps pictures (batch, channels, size, size) to (batch, ways): one number per class. A user's own net may fail in any
way; it must fail before a run begins.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from metastep.core.registry import is_ours, named
from metastep.errors import MetastepError, first_line
from metastep.nets import conv4, deep

__all__ = ["Builder", "comes_with_metastep", "load_net"]

Builder = Callable[..., nn.Module]
MODULES = (conv4, deep)  # each registers nets


def load_net(path: str) -> Builder:
    """Return the builder for a registered name, or for "package.module:Name".

    The second form imports the module, and so runs its code. Use it only for a path that the user typed, never for one
    that was read from a file.
    """
    if ":" not in path:
        found: Builder = named("net", path)
        return found
    module_name, _, name = path.partition(":")
    return _attribute(_imported(module_name, path), name, path)


def comes_with_metastep(path: str) -> bool:
    """Return whether a net is part of metastep. Such a net needs no check of its outputs."""
    return ":" not in path and is_ours(named("net", path))


def _imported(module_name: str, path: str) -> Any:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # a user's net is usually in the current folder
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        raise MetastepError(
            f"net {path!r}: there is no module {error.name!r}. "
            "Install it, or put the folder that it is in on PYTHONPATH."
        ) from error
    except Exception as error:  # a user's module may fail in any way
        raise MetastepError(
            f"net {path!r}: importing {module_name!r} failed with {type(error).__name__}: {error}. Repair that module."
        ) from error


def _attribute(module: Any, name: str, path: str) -> Builder:
    found = getattr(module, name, None)
    if not callable(found):
        reason = "is not callable" if hasattr(module, name) else "does not exist"
        raise MetastepError(
            f"net {path!r}: {name!r} in {module.__name__!r} {reason}. "
            "Name a class or function that builds a module from ways, channels and size."
        )
    builder: Builder = found
    return builder


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
    """Return the module that a builder makes. Report every failure as an error that names the net."""
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
    """Require one number per class for pictures of this shape. The call also creates the parameters of lazy layers."""
    cannot = f"net {name!r} cannot be used on pictures of {'×'.join(map(str, shape))}"
    try:
        answer = net(torch.zeros(2, *shape))
    except Exception as error:
        raise MetastepError(f"{cannot}: {first_line(error)} ({type(error).__name__}). Repair that module.") from error
    if not isinstance(answer, torch.Tensor) or answer.shape != (2, classes):
        got = tuple(answer.shape) if isinstance(answer, torch.Tensor) else type(answer).__name__
        raise MetastepError(f"{cannot}: for 2 of them it gives {got}, not (2, {classes}): one number per class.")


# ---- weights from a local file: safetensors, or a state dict by torch.save (.pth, .pt)


_COUNTER = "num_batches_tracked"  # missing in files from before PyTorch 1.0; BatchNorm rarely needs it


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
        # weights_only: a pickle can run any code, and the file may come from anywhere
        stored = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # the reader of pickles fails in many ways on other files
        raise MetastepError(f"{path} cannot be read as weights ({error}). Fetch or save it again.") from error
    if not (isinstance(stored, Mapping) and all(isinstance(tensor, Tensor) for tensor in stored.values())):
        raise MetastepError(f"{path} does not hold tensors by name. Save module.state_dict() alone.")
    return stored
