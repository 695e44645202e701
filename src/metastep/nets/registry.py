"""Find nets by name; `load_net` also finds a user's own.

A net is a class or function that is called with ways=, channels=, size= and options of its own. It gives a module from
pictures (batch, channels, size, size) to one number for each of so many ways (classes).
"""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from metastep.core.registry import is_ours, named
from metastep.errors import MetastepError
from metastep.nets import conv4, published, resnet, resnet32, vgg

__all__ = ["Builder", "comes_with_metastep", "load_net"]

Builder = Callable[..., nn.Module]
MODULES = (conv4, published, resnet, resnet32, vgg)  # each registers nets


def load_net(path: str) -> Builder:
    """The builder called `path`: a registered name, or "package.module:Name" of the user's own.

    The second form imports and so runs that module: only for a path that the user typed, never one read from a file.
    """
    if ":" not in path:
        found: Builder = named("net", path)
        return found
    module_name, _, name = path.partition(":")
    return _attribute(_imported(module_name, path), name, path)


def comes_with_metastep(path: str) -> bool:
    """Whether a net is ours: it answers as it should, and its code stays as it is."""
    return ":" not in path and is_ours(named("net", path))


def _imported(module_name: str, path: str) -> Any:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # a net lies mostly in the folder that one works in
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
