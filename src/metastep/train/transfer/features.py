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
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from metastep.core.modules import apply, evaluation_mode
from metastep.core.trees import Tree, map_tree
from metastep.errors import MetastepError, did_you_mean, how_many

# ---- BatchNorm on batch statistics whose derivatives, also of its gradient, are written out
#
# PyTorch finds the derivative of a BatchNorm's gradient through dozens of small passes over the maps. By hand it is
#
#     y = γx̂ + β      x̂ = (x − μ)r      r = 1/√(σ² + ε)
#     ẏ = γrẋ + r(γ̇ − γrq)(x − μ) + β̇ − γr·mean ẋ                                           q = mean x̂ẋ
#     dx = γr(dy − mean dy − x̂·mean(dy·x̂))      dγ = Σdy·x̂      dβ = Σdy
#
# and the derivative of dx along (ẋ, γ̇, dẏ) in `_Gradient.jvp`: as many passes as there are arrays.


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        return torch.native_batch_norm(x, scale, shift, None, None, True, 0.0, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, scale, _, ctx.eps = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, scale, *output[1:])
        ctx.save_for_forward(x, scale, *output[1:])

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Any, ...]:
        return *_Gradient.apply(dy, *ctx.saved_tensors, ctx.eps), None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, scale_t: Tensor, shift_t: Tensor, _: Any) -> tuple[Tensor, None, None]:
        x, scale, mean, rstd = ctx.saved_tensors
        gain, away = scale * rstd, x - _wide(mean, x)
        slope = rstd * (scale_t - gain * rstd * _mean(away * x_t))
        y_t = torch.addcmul(_wide(shift_t - gain * _mean(x_t), x), x_t, _wide(gain, x))
        return y_t.addcmul(away, _wide(slope, x)), None, None


class _Gradient(torch.autograd.Function):
    """(dx, dγ, dβ); μ and r are those of x, and move with it"""

    @staticmethod
    def forward(
        dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor, rstd: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        return torch.ops.aten.native_batch_norm_backward(  # type: ignore[no-any-return]
            dy, x, scale, None, None, mean, rstd, True, eps, [True, True, True]
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_forward(*inputs[:5], *output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError("the gradient of this BatchNorm is differentiated forwards only: use metastep.exact")

    @staticmethod
    def jvp(ctx: Any, dy_t: Tensor, x_t: Tensor, scale_t: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        dy, x, scale, mean, rstd, d_scale, d_shift = ctx.saved_tensors
        count = x.numel() // x.shape[1]
        away, m1, m2 = x - _wide(mean, x), d_shift / count, d_scale / count
        mean_t, cross = _mean(x_t), rstd * _mean(away * x_t)
        m1_t = _mean(dy_t)
        # mean(dẏ·x̂ + dy·x̂˙) with x̂˙ = r(ẋ − mean ẋ) − x̂rq
        m2_t = rstd * (_mean(dy_t * away) + _mean(dy * x_t) - m1 * mean_t - cross * m2)
        gain, gain_t = scale * rstd, rstd * (scale_t - scale * rstd * cross)
        u = -gain * rstd * m2
        u_t = -rstd * (gain_t * m2 + gain * m2_t + u * cross)
        dx_t = torch.addcmul(_wide(-gain_t * m1 - gain * m1_t - u * mean_t, x), dy_t, _wide(gain, x))
        dx_t = dx_t.addcmul(dy, _wide(gain_t, x)).addcmul(x_t, _wide(u, x)).addcmul(away, _wide(u_t, x))
        return dx_t, count * m2_t, count * m1_t


def normalised(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """BatchNorm of x (batch, channels, …) by its own statistics"""
    return _Normalised.apply(x, scale, shift, eps)[0]  # type: ignore[no-untyped-call, no-any-return]


def _mean(x: Tensor) -> Tensor:
    return x.mean([0, *range(2, x.dim())])


def _wide(values: Tensor, x: Tensor) -> Tensor:
    """Shape a vector of one entry per channel to broadcast with x."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


# ---- features


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
    """Return how often a tensor was written to."""
    return output._version if isinstance(output, Tensor) else 0


def tap_and_update(
    module: nn.Module, params: Tree, buffers: Tree, x: Tensor, layers: Sequence[str]
) -> tuple[Tensor, list[Tensor], Tree]:
    """(output, features, buffers afterwards): what the module writes to its buffers, it writes to copies"""
    buffers = map_tree(torch.clone, buffers)
    return *tap(module, params, buffers, x, layers), buffers


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """Return running statistics and everything else that a module keeps besides its parameters, by name."""
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
