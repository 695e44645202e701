"""Add up the parts of a sum that separate programs wrote. The order is fixed, so every run gives the same bits."""

import triton
import triton.language as tl
from torch import Tensor

from metastep.step.chain.kernels.following import follow, kernel

BLOCK = 128  # entries of one program: what a warp loads at once
TOGETHER = tl.constexpr(16)  # parts that are requested before the first arrives


@kernel("parts", "per")
def add_kernel(
    x, out, parts, per, length, part_stride, stride, group_stride, out_stride,
    BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Set out[group, task, i] = Σ x[part, task, i] over the `per` parts of a group."""
    follow(CHAINED)
    group, task = tl.program_id(1), tl.program_id(2).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    last = tl.minimum((group + 1) * per, parts)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(group * per, last, TOGETHER):
        part = (first + tl.arange(0, TOGETHER)).to(tl.int64)[:, None]
        mask = (part < last) & (i < length)[None, :]
        total += tl.sum(tl.load(x + part * part_stride + task * stride + i[None, :], mask=mask, other=0.0), 0)
    tl.store(out + group * group_stride + task * out_stride + i, total, mask=i < length)


def add(parts: Tensor, out: Tensor) -> None:
    """Add (parts, tasks, length) into (groups, tasks, length). The last axis of both is contiguous."""
    (groups, tasks, length), number = out.shape, len(parts)
    add_kernel[(triton.cdiv(length, BLOCK), groups, tasks)](
        parts, out, number, triton.cdiv(number, groups), length, *parts.stride()[:2], *out.stride()[:2], BLOCK,
        num_warps=1,
    )  # fmt: skip


def at_most(number: int, sums: Tensor) -> Tensor:
    """Return at most `number` sums of (tasks, sums, …). Neighbours are added up."""
    (tasks, given, *each), per = sums.shape, triton.cdiv(sums.shape[1], number)
    if per == 1:
        return sums
    fewer = sums.new_empty(tasks, triton.cdiv(given, per), *each)
    add(sums.flatten(2).transpose(0, 1), fewer.flatten(2).transpose(0, 1))
    return fewer
