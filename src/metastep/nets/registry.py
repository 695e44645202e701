"""Nets by name: `NETS` and `CLASSIFIERS` have what comes with metastep, `load_net` also finds a user's own."""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from metastep.errors import MetastepError, did_you_mean
from metastep.nets import blocks
from metastep.nets.conv4 import Conv4, Layer, kaiming, layer_init, normal, xavier
from metastep.nets.resnet import ResNet18, ResNet34
from metastep.nets.resnet32 import ResNet32
from metastep.nets.vgg import VGG

Builder = Callable[..., nn.Module]  # called with ways=, channels=, size= and options of its own


def _xavier_normal_head(layer: Layer) -> None:
    (normal if isinstance(layer, nn.Linear) else xavier)(layer)


_imaml_init = layer_init(partial(nn.init.xavier_uniform_, gain=1.73), partial(nn.init.uniform_, a=0.0, b=0.05))
_mini: dict[str, Any] = {"channels": 3, "filters": 32, "size": 84}

NETS: dict[str, Builder] = {
    "conv4": Conv4,
    # Finn et al. 2017; in their code β is meta-trained but not adapted, see ShiftNorm
    "finn_omniglot": partial(Conv4, block=blocks.strided_same_shift, init=_xavier_normal_head, mean_positions=True),
    "finn_mini": partial(Conv4, **_mini, block=blocks.pooled_shift, init=xavier),
    # MAML-Pytorch, which the paper of Multi-step estimation builds on
    "dragen_omniglot": partial(Conv4, block=blocks.strided_unpadded, init=kaiming),
    "dragen_mini": partial(Conv4, **_mini, block=blocks.pooled_unpadded, init=kaiming),
    # Nichol et al. 2018
    "reptile_omniglot": partial(Conv4, block=blocks.strided_same, init=xavier),
    "reptile_mini": partial(Conv4, **_mini, block=blocks.pooled_same, init=xavier),
    # Rajeswaran et al. 2019
    "imaml_omniglot": partial(Conv4, block=blocks.strided_extra_row, init=_imaml_init),
}

# Nets with running statistics, for one data set after another: sources and targets of transfer. Each has `taps`, the
# names of the layers that its features are taken from.
CLASSIFIERS: dict[str, Builder] = {
    "resnet32": ResNet32,
    "vgg9": VGG,
    "resnet18": ResNet18,
    "resnet34": ResNet34,
    # for small pictures and two CPU cores
    "resnet8": partial(ResNet32, blocks=1),
    "vgg4": partial(VGG, stages=((16,), (32,), (64,))),
    "vgg7": partial(VGG, stages=((16,), (32,), (64, 64), (64, 64))),
}


def load_net(path: str, nets: Mapping[str, Builder] = NETS) -> Builder:
    """The builder called `path`: a name in `nets`, or "package.module:Name" of the user's own.

    The second form imports and so runs that module: only for a path that the user typed, never one read from a file.
    """
    if path in nets:
        return nets[path]
    if ":" not in path:
        raise MetastepError(
            f"there is no net {path!r}.{did_you_mean(path, nets)} "
            f"Choose one of {', '.join(nets)}, or give your own as package.module:Name."
        )
    module_name, _, name = path.partition(":")
    return _attribute(_imported(module_name, path), name, path)


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
