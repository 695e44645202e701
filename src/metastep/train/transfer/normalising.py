"""BatchNorm on batch statistics whose derivatives, also of its gradient, are written out.

PyTorch finds the derivative of a BatchNorm's gradient through dozens of small passes over the maps. By hand it is

    y = γx̂ + β      x̂ = (x − μ)r      r = 1/√(σ² + ε)
    ẏ = γrẋ + r(γ̇ − γrq)(x − μ) + β̇ − γr·mean ẋ                                             q = mean x̂ẋ
    dx = γr(dy − mean dy − x̂·mean(dy·x̂))      dγ = Σdy·x̂      dβ = Σdy

and the derivative of dx along (ẋ, γ̇, dẏ) in `_Gradient.jvp`: as many passes as there are arrays.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


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
    """One for each channel, beside x"""
    return values.view(1, -1, *[1] * (x.dim() - 2))
