"""Run Adam for a fused problem. n steps that share a gradient take one pass over φ, m, v and g; so does their pullback.

Without weight decay in the gradient, the moments after k steps of a window do not depend on the path of φ:

    m_k = β₁ᵏ m + (1 − β₁ᵏ) g        v_k = β₂ᵏ v + (1 − β₂ᵏ) g²        φ ← (1 − ηω) φ − η m̂_k / (√v̂_k + ε)
"""

from dataclasses import dataclass
from math import log
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from metastep.core.entrywise import Moved, Rates
from metastep.core.optimizers import AdamW
from metastep.step.chain.kernels.following import follow, kernel

BLOCK = 512


@triton.jit
def _unbiased(before, k, POWER: tl.constexpr):
    """Return 1 − βᵗ for step t, counted from the start. It is small at first, hence double precision."""
    return (1.0 - tl.exp((before + k) * POWER)).to(tl.float32)


@triton.jit
def _step(m, v, g, before, k: tl.constexpr, B1: tl.constexpr, B2: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr):
    """Return m_k, v_k, m̂_k and √v̂_k."""
    m = B1**k * m + (1 - B1**k) * g
    v = B2**k * v + (1 - B2**k) * g * g
    return m, v, m / _unbiased(before, k, P1), tl.sqrt(v / _unbiased(before, k, P2))


@kernel()
def adam_kernel(
    p, m, v, g, steps, p_after, m_after, v_after, length, lr, kept, eps,
    B1: tl.constexpr, B2: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    follow(CHAINED)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < length
    before = tl.load(steps)
    params, grad = tl.load(p + at, mask=mask), tl.load(g + at, mask=mask)
    first, second = tl.load(m + at, mask=mask), tl.load(v + at, mask=mask)
    for i in tl.static_range(N):
        m_k, v_k, direction, size = _step(first, second, grad, before, i + 1, B1, B2, P1, P2)
        params = kept * params - lr * direction / (size + eps)
    tl.store(p_after + at, params, mask=mask)
    tl.store(m_after + at, m_k, mask=mask)
    tl.store(v_after + at, v_k, mask=mask)


@kernel()
def pullback_kernel(
    m, v, g, steps, d_p, d_m, d_v, to_p, to_m, to_v, to_g, length, lr, kept, eps,
    B1: tl.constexpr, B2: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Write the cotangents, from the last step to the first. √ has slope 0 at 0, as in `metastep.core.optimizers`."""
    follow(CHAINED)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < length
    before = tl.load(steps)
    first, second, grad = tl.load(m + at, mask=mask), tl.load(v + at, mask=mask), tl.load(g + at, mask=mask)
    params = tl.load(d_p + at, mask=mask)
    d_first, d_second = tl.load(d_m + at, mask=mask), tl.load(d_v + at, mask=mask)
    sum_m, sum_v, sum_g = tl.zeros_like(grad), tl.zeros_like(grad), tl.zeros_like(grad)
    for i in tl.static_range(N):
        _, v_k, direction, size = _step(first, second, grad, before, N - i, B1, B2, P1, P2)
        slope = tl.where(v_k > 0, 0.5 / tl.where(v_k > 0, size, 1.0), 0.0) / _unbiased(before, N - i, P2)
        pulled = lr * params / (size + eps)
        d_first -= pulled / _unbiased(before, N - i, P1)
        d_second += pulled * direction / (size + eps) * slope
        sum_m += B1 ** (N - i) * d_first
        sum_v += B2 ** (N - i) * d_second
        sum_g += (1 - B1 ** (N - i)) * d_first + (1 - B2 ** (N - i)) * 2 * grad * d_second
        d_first, d_second = tl.zeros_like(grad), tl.zeros_like(grad)
        params = kept * params
    tl.store(to_p + at, params, mask=mask)
    tl.store(to_m + at, sum_m, mask=mask)
    tl.store(to_v + at, sum_v, mask=mask)
    tl.store(to_g + at, sum_g, mask=mask)


@dataclass(frozen=True)
class Passes:
    """Launch both passes over a window of `number` steps."""

    lr: float
    kept: float  # of φ in each step
    eps: float
    betas: tuple[float, float]
    number: int

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Map φ, m, v, g and the number of earlier steps to φ, m, v."""
        return self._launch(adam_kernel, inputs, 3)

    def pullback(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Map m, v, g, the number of earlier steps and cotangents of φ, m, v to cotangents of φ, m, v, g."""
        return self._launch(pullback_kernel, inputs, 4)

    def _launch(self, kernel: Any, inputs: tuple[Tensor, ...], number: int) -> tuple[Tensor, ...]:
        given = [x.contiguous() for x in inputs]
        found = [torch.empty_like(given[0]) for _ in range(number)]
        length, (b1, b2) = given[0].numel(), self.betas
        powers = [log(beta) if beta else -1e30 for beta in self.betas]  # 0ᵗ = 0
        kernel[(triton.cdiv(length, BLOCK),)](
            *given, *found, length, self.lr, self.kept, self.eps, b1, b2, *powers, self.number, BLOCK
        )
        return tuple(found)


class _Window(torch.autograd.Function):
    @staticmethod
    def forward(passes: Passes, *inputs: Tensor) -> tuple[Tensor, ...]:
        return passes.forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.passes = inputs[0]
        ctx.save_for_backward(*inputs[2:])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        # A separate function, because the transforms of torch.func wrap the saved tensors here.
        return None, *_Pullback.apply(ctx.passes, *ctx.saved_tensors, *cotangents), None  # type: ignore[no-untyped-call]


class _Pullback(torch.autograd.Function):
    @staticmethod
    def forward(passes: Passes, *inputs: Tensor) -> tuple[Tensor, ...]:
        return passes.pullback(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        raise NotImplementedError("the pullback of Adam is for sweeps, which differentiate once")


@dataclass(frozen=True, repr=False)
class FusedAdam(AdamW):
    """Run Adam for one parameter tensor on a GPU, with rates that are numbers and no weight decay in the gradient."""

    def _move(self, p: Tensor, memory: list[Tensor], g: Tensor, rates: Rates, step: Any) -> Moved:
        (lr, b1, b2, eps, weight_decay), *_ = rates  # numbers, so equal for all tensors
        passes = Passes(lr, 1 - lr * weight_decay, eps, (b1, b2), len(rates))
        # One number for all tasks. `_unbiased` needs it in double precision.
        before = step.double() if isinstance(step, Tensor) else p.new_full((), step, dtype=torch.float64)
        moved, m, v = _Window.apply(passes, p, *memory, g, before)  # type: ignore[no-untyped-call]
        return moved, [m, v]
