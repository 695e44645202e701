"""Features of any module by the names of its layers, and running statistics as values.

A tapped module is a pure function of its parameters and buffers: forward hooks see what the named layers give, around
one `torch.func.functional_call`. Nothing of the module changes but for the length of a call.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from metastep.core.modules import apply, evaluation_mode
from metastep.core.trees import Tree, map_tree
from metastep.errors import MetastepError, did_you_mean, how_many
from metastep.train.transfer.normalising import normalised


class Tapped(NamedTuple):
    """A module and the layers, by their dotted names, whose outputs are its features."""

    module: nn.Module
    layers: tuple[str, ...]


def tap(
    module: nn.Module, params: Tree, buffers: Tree, x: Tensor, layers: Sequence[str]
) -> tuple[Tensor, list[Tensor]]:
    """(output, output of each layer); a layer that is called several times gives its last output"""
    seen: dict[str, tuple[Any, int]] = {}
    with ExitStack() as hooks:
        for name in layers:
            keep = partial(_keep, seen, name)
            hooks.enter_context(layer_named(module, name).register_forward_hook(keep))
        output = apply(module, {**params, **buffers}, x)
    return output, [_kept(module, name, *seen.get(name, (None, 0))) for name in layers]


def _keep(seen: dict[str, tuple[Any, int]], name: str, part: nn.Module, inputs: Any, output: Any) -> None:
    del part, inputs
    seen[name] = output, _version(output)


def _kept(module: nn.Module, name: str, output: Any, version: int) -> Any:
    if output is None:
        raise MetastepError(f"{type(module).__name__} has the layer {name!r} but does not call it: name another.")
    if _version(output) != version:
        raise MetastepError(
            f"a later layer of {type(module).__name__} overwrites what {name!r} gives, as ReLU(inplace=True) does. "
            "Name that later layer, or build the net without inplace."
        )
    return output


def _version(output: Any) -> int:
    """How often a tensor was written to"""
    return output._version if isinstance(output, Tensor) else 0


def tap_and_update(
    module: nn.Module, params: Tree, buffers: Tree, x: Tensor, layers: Sequence[str]
) -> tuple[Tensor, list[Tensor], Tree]:
    """(output, features, buffers afterwards): what the module writes to its buffers, it writes to copies"""
    buffers = map_tree(torch.clone, buffers)
    return *tap(module, params, buffers, x, layers), buffers


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """Running statistics and all else that a module keeps beside its parameters, by name"""
    return dict(module.named_buffers())


@contextmanager
def batch_statistics(module: nn.Module) -> Iterator[None]:
    """BatchNorm in training mode normalises as ever, and leaves its running statistics alone."""
    norms = [part for part in module.modules() if isinstance(part, _BatchNorm) and part.training and part.affine]
    for part in norms:
        part.forward = partial(_normalise, part)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for part in norms:
            del part.forward


def _normalise(part: _BatchNorm, x: Tensor) -> Tensor:
    if x.numel() == x.shape[1]:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.shape}")
    return normalised(x, part.weight, part.bias, part.eps)


@torch.no_grad()
def feature_shapes(tapped: Tapped, x: Tensor) -> list[tuple[int, int, int]]:
    """(channels, height, width) of each feature, found by running one batch; nothing is left in the module"""
    with evaluation_mode(tapped.module):
        features = tap(tapped.module, {}, {}, x, tapped.layers)[1]
    return [_shape(name, feature, len(x)) for name, feature in zip(tapped.layers, features, strict=True)]


def _shape(name: str, feature: object, batch: int) -> tuple[int, int, int]:
    if not isinstance(feature, Tensor) or feature.dim() != 4 or len(feature) != batch:
        got = tuple(feature.shape) if isinstance(feature, Tensor) else type(feature).__name__
        raise MetastepError(
            f"layer {name!r} gives {got} for a batch of {how_many(batch, 'picture')}; a feature to transfer must be "
            "(batch, channels, height, width). Name a convolutional layer or block."
        )
    channels, height, width = feature.shape[1:]
    return channels, height, width


def layer_named(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(name or "''")  # the empty name would be the module itself
    except AttributeError as error:
        guess = did_you_mean(name, dict(module.named_modules()))
        children = ", ".join(part for part, _ in module.named_children())
        raise MetastepError(
            f"{type(module).__name__} has no layer {name!r}.{guess} "
            f"Its layers begin with {children}; module.named_modules() lists all."
        ) from error
