"""Join sums over blocks of rows into sums over all rows, for the forward and the backward of BatchNorm.

Every program that reads z (or dn) joins the sums of its channels. A separate kernel would take longer to start than all
of them take together.
"""

import triton
import triton.language as tl

from metastep.step.chain.kernels.following import follow, kernel
from metastep.step.chain.kernels.tiles import NORM_ROWS, load_pair, norm_of

FEW = tl.constexpr(32)  # sums at a time: so many stay in registers for two passes


@triton.jit
def _over_blocks(sums, c, first, rows, per, C: tl.constexpr, DUAL: tl.constexpr):
    """Return mean, Σ(z − mean)², mean ż and Σ(z − mean)ż of the channels c over FEW blocks of `per` rows."""
    b = first + tl.arange(0, FEW)
    at, mask = (b * 4 * C)[:, None] + c[None, :], (b * per < rows)[:, None]
    count = tl.minimum(rows - b * per, per).to(tl.float32)[:, None]  # the last block may have fewer
    there = tl.minimum(rows - first * per, FEW * per).to(tl.float32)
    means, means_t = load_pair(sums, sums + 2 * C, at, mask, DUAL)
    squares, products = load_pair(sums + C, sums + 3 * C, at, mask, DUAL)
    mean = tl.sum(count * means, 0) / there
    away = tl.where(mask, means - mean[None, :], 0.0)
    square = tl.sum(squares + count * away * away, 0)
    mean_t, product = mean, square
    if DUAL:
        mean_t = tl.sum(count * means_t, 0) / there
        product = tl.sum(products + count * away * (means_t - mean_t[None, :]), 0)
    return mean, square, mean_t, product


@kernel("rows", "per")
def join_kernel(
    sums, fewer, rows, per, C: tl.constexpr, SOME: tl.constexpr, DUAL: tl.constexpr, CHAINED: tl.constexpr
):  # fmt: skip
    """Write sums of blocks that are FEW times as long."""
    follow(CHAINED)
    group, task = tl.program_id(0), tl.program_id(1).to(tl.int64)
    c = tl.program_id(2) * SOME + tl.arange(0, SOME)
    sums += task * tl.cdiv(rows, per) * 4 * C
    mean, square, mean_t, product = _over_blocks(sums, c, group * FEW, rows, per, C, DUAL)
    fewer += (task * tl.num_programs(0) + group) * 4 * C + c
    tl.store(fewer, mean)
    tl.store(fewer + C, square)
    if DUAL:
        tl.store(fewer + 2 * C, mean_t)
        tl.store(fewer + 3 * C, product)


@triton.jit
def made_norm(
    sums, norm, scale, shift, scale_t, shift_t, rows, per, eps, stride, task, keep, c,
    C: tl.constexpr, SCALED: tl.constexpr, DUAL: tl.constexpr,
):  # fmt: skip
    """Return what `norm_of` reads, from at most FEW blocks. One program of each task stores it for later kernels."""
    at, gamma, gamma_t = task * stride + c, 1.0, 0.0
    if SCALED:  # loaded before the wait for the sums
        gamma, gamma_t = load_pair(scale, scale_t, at, c < C, DUAL)
    beta, beta_t = load_pair(shift, shift_t, at, c < C, DUAL)
    mean, square, mean_t, product = _over_blocks(sums + task * tl.cdiv(rows, per) * 4 * C, c, 0, rows, per, C, DUAL)
    rstd = 1.0 / tl.sqrt(square / rows + eps)
    a = rstd * gamma
    b = beta - mean * a
    a_t, b_t, cross = a, b, rstd
    if DUAL:
        cross = rstd * product / rows
        a_t = rstd * (gamma_t - a * cross)
        b_t = beta_t - a * mean_t - mean * a_t
    numbers = (
        a[None, :], b[None, :], a_t[None, :], b_t[None, :],
        mean[None, :], rstd[None, :], mean_t[None, :], cross[None, :],
    )  # fmt: skip
    if keep:
        row = tl.arange(0, NORM_ROWS)[:, None]
        kept = tl.where(row == 0, numbers[0], numbers[1])
        for i in tl.static_range(2, NORM_ROWS):  # one store: separate stores would rearrange each
            kept = tl.where(row == i, numbers[i], kept)
        tl.store(norm + (task * NORM_ROWS + row) * C + c[None, :], kept)
    return numbers


@triton.jit
def made_back(
    sums, norm, d_shift, d_scale, d_bias, rows, blocks, stride, task, keep, o,
    O: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr, DUAL: tl.constexpr,
):  # fmt: skip
    """Return G, U, V, G˙, U˙, V˙ from at most FEW sums of dn. One program per task stores the gradients of γ, β."""
    # G is A: both are γr
    g, _, g_t, _, mean, rstd, mean_t, cross = norm_of(norm + task * NORM_ROWS * O, o, O, DUAL)
    block = tl.arange(0, FEW)
    each, mask = (block * 4 * O)[:, None] + o[None, :], (block < blocks)[:, None]
    sums += task * blocks * 4 * O
    shifts, shifts_t = load_pair(sums, sums + 2 * O, each, mask, DUAL)
    slopes, slopes_t = load_pair(sums + O, sums + 3 * O, each, mask, DUAL)
    shift, slope = tl.sum(shifts, 0)[None, :], tl.sum(slopes, 0)[None, :]
    m1, m2 = shift / rows, slope / rows
    u = -g * rstd * m2
    v = -g * m1 - u * mean
    u_t, v_t = u, v
    if DUAL:
        shift, slope = tl.sum(shifts_t, 0)[None, :], tl.sum(slopes_t, 0)[None, :]
        u_t = rstd * (-g_t * m2 - g * slope / rows - u * cross)
        v_t = -g_t * m1 - g * shift / rows - u * mean_t - u_t * mean
    if keep:
        at = (task * stride + o)[None, :]
        tl.store(d_shift + at, shift)
        if SCALED:
            tl.store(d_scale + at, slope)
        if BIAS:
            tl.store(d_bias + at, tl.zeros_like(shift))
    return g, u, v, g_t, u_t, v_t
