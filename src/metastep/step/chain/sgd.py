"""Run SGD for a fused problem. n steps that share a gradient take one pass over φ, v and g; so does the pullback."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from metastep.core.optimizers import SGD
from metastep.step.chain.kernels.following import follow, kernel

BLOCK = 1024
Rows = Sequence[Sequence[float]]  # a matrix: outputs by inputs


@kernel()
def combination_kernel(
    x0, x1, x2, y0, y1, y2, c00, c01, c02, c10, c11, c12, c20, c21, c22,
    row0, row1, row2, step0, step1, step2, length,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Set y = C x for each entry. x may be one row, or one number, for all."""
    follow(CHAINED)
    row, i = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask, at = i < length, row * length + i
    a = tl.load(x0 + row * row0 + i * step0, mask=mask)
    b = tl.load(x1 + row * row1 + i * step1, mask=mask)
    y, z, w = c00 * a + c01 * b, c10 * a + c11 * b, c20 * a + c21 * b
    if INPUTS == 3:
        c = tl.load(x2 + row * row2 + i * step2, mask=mask)
        y, z, w = y + c02 * c, z + c12 * c, w + c22 * c
    tl.store(y0 + at, y, mask=mask)
    tl.store(y1 + at, z, mask=mask)
    if OUTPUTS == 3:
        tl.store(y2 + at, w, mask=mask)


def combined(rows: Rows, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    xs = [x if x.dim() == 2 else x.reshape(1, -1) for x in inputs]
    ys = [inputs[0].new_empty(inputs[0].shape) for _ in rows]
    table = [[row[i] if i < len(row) else 0.0 for i in range(3)] for row in [*rows, [0.0] * 3][:3]]
    number, length = xs[0].shape
    three = xs[0], xs[1], xs[-1]
    combination_kernel[(triton.cdiv(length, BLOCK), number)](
        *three, ys[0], ys[1], ys[-1], *(c for row in table for c in row),
        *(x.stride(0) for x in three), *(x.stride(1) for x in three), length, len(xs), len(ys), BLOCK,
    )  # fmt: skip
    return tuple(ys)


def _is_hollow(x: Tensor) -> bool:
    return x.dim() > 0 and not any(x.stride())


class _Combination(torch.autograd.Function):
    @staticmethod
    def forward(rows: Rows, *inputs: Tensor) -> tuple[Tensor, ...]:
        for x in inputs:
            if _is_hollow(x):  # a placeholder for a gradient: nothing reads its values
                return tuple(x for _ in rows)
        return combined(rows, inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.rows = inputs[0]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        return None, *combined(list(zip(*ctx.rows, strict=True)), cotangents)


@dataclass(frozen=True, repr=False)
class FusedSGD(SGD):
    """Run SGD for one parameter tensor on a GPU, with momentum and rates that are numbers."""

    def _combine(self, inputs: Sequence[Tensor], rows: Rows) -> Sequence[Tensor]:
        return _Combination.apply(rows, *inputs)  # type: ignore[no-untyped-call, no-any-return]
