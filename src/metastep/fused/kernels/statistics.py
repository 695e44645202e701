"""Sums over all rows, joined of those over blocks of rows: what BatchNorm needs on the way forth, and back."""

import triton
import triton.language as tl

from metastep.fused.kernels.following import follow, kernel
from metastep.fused.kernels.tiles import (
    A_T,
    B_T,
    BACK_ROWS,
    CROSS,
    G_T,
    MEAN,
    MEAN_T,
    NORM_ROWS,
    RSTD,
    U_T,
    V_T,
    A,
    B,
    G,
    U,
    V,
)  # fmt: skip


@triton.jit
def channels(group, SOME: tl.constexpr):
    return group * SOME + tl.arange(0, SOME)


@triton.jit
def _joined(
    sums, o, rows, start, blocks,
    O: tl.constexpr, SOME: tl.constexpr, BLOCK_R: tl.constexpr, DUAL: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Of the channels o and of `blocks` blocks from the block `start`: mean, Σ(z − mean)², mean ż, Σ(z − mean)ż"""
    there = tl.minimum(rows - start * BLOCK_R, blocks * BLOCK_R).to(tl.float32)
    total, total_t = tl.zeros((SOME,), tl.float32), tl.zeros((SOME,), tl.float32)
    for first in range(start, start + blocks, MANY):
        b = first + tl.arange(0, MANY)
        count = tl.minimum(rows - b * BLOCK_R, BLOCK_R).to(tl.float32)[:, None]
        at, mask = (b * 4 * O)[:, None] + o[None, :], (b < start + blocks)[:, None]
        total += tl.sum(count * tl.load(sums + at, mask=mask, other=0.0), 0)
        if DUAL:
            total_t += tl.sum(count * tl.load(sums + at + 2 * O, mask=mask, other=0.0), 0)
    mean, mean_t = total / there, total_t / there
    square, product = tl.zeros((SOME,), tl.float32), tl.zeros((SOME,), tl.float32)
    for first in range(start, start + blocks, MANY):
        b = first + tl.arange(0, MANY)
        count = tl.minimum(rows - b * BLOCK_R, BLOCK_R).to(tl.float32)[:, None]
        at, mask = (b * 4 * O)[:, None] + o[None, :], (b < start + blocks)[:, None]
        away = tl.where(mask, tl.load(sums + at, mask=mask, other=0.0) - mean[None, :], 0.0)
        square += tl.sum(tl.load(sums + at + O, mask=mask, other=0.0) + count * away * away, 0)
        if DUAL:
            away_t = tl.load(sums + at + 2 * O, mask=mask, other=0.0) - mean_t[None, :]
            product += tl.sum(tl.load(sums + at + 3 * O, mask=mask, other=0.0) + count * away * away_t, 0)
    return mean, square, mean_t, product


@kernel("rows", "blocks")
def join_kernel(
    sums, joined, rows, blocks,
    O: tl.constexpr, SOME: tl.constexpr, BLOCK_R: tl.constexpr, DUAL: tl.constexpr, MANY: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Sums of blocks that are MANY times as long"""
    follow(CHAINED)
    group, task, o = tl.program_id(0), tl.program_id(1).to(tl.int64), channels(tl.program_id(2), SOME)
    sums += task * blocks * 4 * O
    number = tl.minimum(blocks - group * MANY, MANY)
    mean, square, mean_t, product = _joined(sums, o, rows, group * MANY, number, O, SOME, BLOCK_R, DUAL, MANY)
    joined += (task * tl.num_programs(0) + group) * 4 * O + o
    tl.store(joined, mean)
    tl.store(joined + O, square)
    if DUAL:
        tl.store(joined + 2 * O, mean_t)
        tl.store(joined + 3 * O, product)


@kernel("rows", "blocks")
def statistics_kernel(
    sums, norm, scale, shift, scale_t, shift_t, rows, stride, blocks, eps,
    O: tl.constexpr, SOME: tl.constexpr, BLOCK_R: tl.constexpr, DUAL: tl.constexpr, MANY: tl.constexpr,
    SCALED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """A, B, A˙, B˙ and what they are made of"""
    follow(CHAINED)
    task, o = tl.program_id(0).to(tl.int64), channels(tl.program_id(1), SOME)
    sums += task * blocks * 4 * O
    mean, square, mean_t, product = _joined(sums, o, rows, 0, blocks, O, SOME, BLOCK_R, DUAL, MANY)
    rstd = 1.0 / tl.sqrt(square / rows + eps)
    a = rstd * tl.load(scale + task * stride + o) if SCALED else rstd
    norm += task * NORM_ROWS * O + o
    tl.store(norm + A * O, a)
    tl.store(norm + B * O, tl.load(shift + task * stride + o) - mean * a)
    tl.store(norm + MEAN * O, mean)
    tl.store(norm + RSTD * O, rstd)
    if DUAL:
        cross = rstd * product / rows
        a_t = -a * cross * rstd
        if SCALED:
            a_t += rstd * tl.load(scale_t + task * stride + o)
        tl.store(norm + A_T * O, a_t)
        tl.store(norm + B_T * O, tl.load(shift_t + task * stride + o) - a * mean_t - mean * a_t)
        tl.store(norm + MEAN_T * O, mean_t)
        tl.store(norm + CROSS * O, cross)


@kernel("rows", "blocks")
def cotangent_kernel(
    sums, norm, d_shift, d_scale, d_bias, back, rows, stride, blocks,
    O: tl.constexpr, SOME: tl.constexpr, DUAL: tl.constexpr, MANY: tl.constexpr, SCALED: tl.constexpr,
    BIAS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Joins the sums of dn; writes the gradients of γ and β (or their derivatives), and makes G, U, V, … of them"""
    follow(CHAINED)
    task, o = tl.program_id(0).to(tl.int64), channels(tl.program_id(1), SOME)
    sums += task * blocks * 4 * O
    shift, slope = tl.zeros((SOME,), tl.float32), tl.zeros((SOME,), tl.float32)
    shift_t, slope_t = tl.zeros((SOME,), tl.float32), tl.zeros((SOME,), tl.float32)
    for first in range(0, blocks, MANY):
        b = first + tl.arange(0, MANY)
        at, mask = (b * 4 * O)[:, None] + o[None, :], (b < blocks)[:, None]
        shift += tl.sum(tl.load(sums + at, mask=mask, other=0.0), 0)
        slope += tl.sum(tl.load(sums + at + O, mask=mask, other=0.0), 0)
        if DUAL:
            shift_t += tl.sum(tl.load(sums + at + 2 * O, mask=mask, other=0.0), 0)
            slope_t += tl.sum(tl.load(sums + at + 3 * O, mask=mask, other=0.0), 0)
    norm += task * NORM_ROWS * O + o
    mean, rstd = tl.load(norm + MEAN * O), tl.load(norm + RSTD * O)
    g, m1, m2 = tl.load(norm + A * O), shift / rows, slope / rows  # G is A: both are γr
    u = -g * rstd * m2
    back += task * BACK_ROWS * O + o
    tl.store(back + G * O, g)
    tl.store(back + U * O, u)
    tl.store(back + V * O, -g * m1 - u * mean)
    if DUAL:
        mean_t, cross, g_t = tl.load(norm + MEAN_T * O), tl.load(norm + CROSS * O), tl.load(norm + A_T * O)
        u_t = rstd * (-g_t * m2 - g * slope_t / rows - u * cross)
        tl.store(back + G_T * O, g_t)
        tl.store(back + U_T * O, u_t)
        tl.store(back + V_T * O, -g_t * m1 - g * shift_t / rows - u * mean_t - u_t * mean)
        shift, slope = shift_t, slope_t
    tl.store(d_shift + task * stride + o, shift)
    if SCALED:
        tl.store(d_scale + task * stride + o, slope)
    if BIAS:
        tl.store(d_bias + task * stride + o, tl.zeros((SOME,), tl.float32))
