"""Compute the gradients of a convolution by its weights and by its input."""

import triton
import triton.language as tl

from metastep.step.chain.kernels.following import follow, kernel
from metastep.step.chain.kernels.statistics import made_back
from metastep.step.chain.kernels.tiles import (
    NORM_ROWS,
    activation,
    before_norm,
    dot,
    load_after_norm,
    load_pair,
    norm_of,
    patch_tile,
    position,
)


@triton.jit
def cotangent_of(da, da_t, z, z_t, numbers, dn, dn_t, at, mask, DUAL: tl.constexpr):
    """Write dn = da·[n > 0], and return its sums over these rows: Σdn, Σdn·ẑ, Σdṅ, Σ(dṅ·ẑ + dn·ẑ˙)."""
    a, b, _, _, mean, rstd, mean_t, cross = numbers
    value, value_t = load_pair(z, z_t, at, mask, DUAL)
    opened = mask & (value * a + b > 0)
    z_hat = (value - mean) * rstd
    d = tl.where(opened, da, 0.0)
    tl.store(dn + at, d, mask=mask)
    shift, scale = tl.sum(d, 0), tl.sum(d * z_hat, 0)
    shift_t, scale_t = shift, scale
    if DUAL:
        d_t = tl.where(opened, da_t, 0.0)
        tl.store(dn_t + at, d_t, mask=mask)
        z_hat_t = rstd * (value_t - mean_t - z_hat * cross)
        shift_t, scale_t = tl.sum(d_t, 0), tl.sum(d_t * z_hat + d * z_hat_t, 0)
    return shift, scale, shift_t, scale_t


@triton.jit
def store_sums(sums, found, block, task, o, O: tl.constexpr, DUAL: tl.constexpr):
    sums += (task * tl.num_programs(0) + block) * 4 * O + o
    tl.store(sums, found[0])
    tl.store(sums + O, found[1])
    if DUAL:
        tl.store(sums + 2 * O, found[2])
        tl.store(sums + 3 * O, found[3])


@kernel("pictures", "size", "width")
def data_kernel(
    dz, dz_t, w, w_t, below, below_t, norm, out, out_t, sums, pictures, stride, size, width,
    C: tl.constexpr, O: tl.constexpr, K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr,
    DUAL: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Write dn of the block below and its sums, from da of the input by the transposed convolution.

    Input positions that differ by a multiple of the stride have the same taps. They form a phase, S · S in all.
    """
    follow(CHAINED)
    block, task = tl.program_id(0), tl.program_id(1).to(tl.int64)
    per_phase = tl.num_programs(0) // (S * S)
    phase = block // per_phase
    py, px = phase // S, phase % S
    high, wide = (size - py + S - 1) // S, (size - px + S - 1) // S
    r = block % per_phase * BLOCK_R + tl.arange(0, BLOCK_R)
    row_mask = r < pictures * high * wide
    image, y, x = position(r, high, wide)
    y, x = y * S + py, x * S + px
    dz += task * pictures * width * width * O
    dz_t += task * pictures * width * width * O
    w += task * stride
    w_t += task * stride
    c = tl.arange(0, C)
    acc = tl.zeros((BLOCK_R, C), tl.float32)
    acc_t = tl.zeros((BLOCK_R, C), tl.float32)
    ky0, kx0 = (py + PAD) % S, (px + PAD) % S
    across = (K - kx0 + S - 1) // S
    y0, x0 = (y + PAD - ky0) // S, (x + PAD - kx0) // S  # exact division: other remainders belong to other taps
    corner = ((image * width + y0) * width + x0) * O
    for step in range((K - ky0 + S - 1) // S * across * (O // BLOCK_K)):
        tap = step // (O // BLOCK_K)
        o = step % (O // BLOCK_K) * BLOCK_K + tl.arange(0, BLOCK_K)
        down, right = tap // across, tap % across
        yo, xo = y0 - down, x0 - right
        mask = (row_mask & (yo >= 0) & (yo < width) & (xo >= 0) & (xo < width))[:, None]
        d, d_t = load_pair(dz, dz_t, (corner - (down * width + right) * O)[:, None] + o[None, :], mask, DUAL)
        w_at = (((ky0 + down * S) * K + kx0 + right * S) * C + c)[:, None] * O + o[None, :]
        weight = tl.trans(tl.load(w + w_at))
        acc = dot(d, weight, acc, PRECISION)
        if DUAL:
            acc_t = dot(d_t, weight, acc_t, PRECISION)
            acc_t = dot(d, tl.trans(tl.load(w_t + w_at)), acc_t, PRECISION)
    at = ((task * pictures + image) * size * size + y * size + x)[:, None] * C + c[None, :]
    mask, numbers = row_mask[:, None] & (c < C)[None, :], norm_of(norm + task * NORM_ROWS * C, c, C, DUAL)
    found = cotangent_of(acc, acc_t, below, below_t, numbers, out, out_t, at, mask, DUAL)
    store_sums(sums, found, block, task, c, C, DUAL)


@kernel("rows", "rows_per_part", "size", "width")
def weight_kernel(
    src, src_t, norm, dz, dz_t, out, rows, rows_per_part, stride, part_stride, size, width,
    C: tl.constexpr, O: tl.constexpr, K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr,
    DUAL: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, TAPS: tl.constexpr, PRECISION: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Write dw = (a⁻)ᵀ dz, or its derivative, of some taps and channels over a part of the rows. dz is read once."""
    follow(CHAINED)
    number, part, task = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    first_tap, pictures = number // (C // BLOCK_C) * TAPS, rows // (width * width)
    src += task * pictures * size * size * C
    src_t += task * pictures * size * size * C
    dz += task * rows * O
    dz_t += task * rows * O
    o, c = tl.arange(0, O), number % (C // BLOCK_C) * BLOCK_C + tl.arange(0, BLOCK_C)
    numbers = norm_of(norm + task * NORM_ROWS * C, c, C, DUAL)
    sums = ()
    for _ in tl.static_range(TAPS):
        sums = sums + (tl.zeros((BLOCK_C, O), tl.float32),)  # type: ignore[assignment]  # noqa: RUF005
    last = tl.minimum((part + 1) * rows_per_part, rows)
    for first in range(part * rows_per_part, last, BLOCK_R):
        r = first + tl.arange(0, BLOCK_R)
        row_mask = r < last
        image, yo, xo = position(r, width, width)
        d, d_t = load_pair(dz, dz_t, r[:, None] * O + o[None, :], row_mask[:, None], DUAL)
        y0, x0 = yo * S - PAD, xo * S - PAD
        corner, added = ((image * size + y0) * size + x0) * C, ()
        for i in tl.static_range(TAPS):
            down, right = (first_tap + i) // K, (first_tap + i) % K
            y, x = y0 + down, x0 + right
            seen = (row_mask & (y >= 0) & (y < size) & (x >= 0) & (x < size))[:, None]
            at = (corner + (down * size + right) * C)[:, None] + c[None, :]
            value, value_t = load_pair(src, src_t, at, seen, DUAL)
            f, f_t = activation(value, value_t, numbers, seen, DUAL)
            acc = dot(tl.trans(f), d_t, sums[i], PRECISION)
            if DUAL:
                acc = dot(tl.trans(f_t), d, acc, PRECISION)
            added = added + (acc,)  # type: ignore[assignment]  # noqa: RUF005
        sums = added
    for i in tl.static_range(TAPS):
        at = ((first_tap + i) * C + c)[:, None] * O + o[None, :]
        tl.store(out + part * part_stride + task * stride + at, sums[i])


@kernel("side", "blocks", "rows", "rows_per_part", "size", "width")
def patch_weight_kernel(
    src, dn, dn_t, places, z, z_t, side, sums, norm, d_shift, d_scale, d_bias, blocks, d_stride,
    SCALED: tl.constexpr, BIAS: tl.constexpr, out, rows, rows_per_part, stride, part_stride, size, width,
    C: tl.constexpr, O: tl.constexpr, K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, POOL: tl.constexpr,
    DUAL: tl.constexpr, BLOCK_R: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Write the same for all taps at once if there are few channels. dz is computed here, its only reader."""
    follow(CHAINED)
    part, task = tl.program_id(0), tl.program_id(1).to(tl.int64)
    pictures = rows // (width * width)
    src += task * pictures * size * size * C
    dn += task * pictures * side * side * O
    dn_t += task * pictures * side * side * O
    places += task * pictures * side * side * O
    z += task * rows * O
    z_t += task * rows * O
    o, k = tl.arange(0, O), tl.arange(0, COLUMNS)
    numbers = made_back(
        sums, norm, d_shift, d_scale, d_bias, rows, blocks, d_stride, task, part == 0, o, O, SCALED, BIAS, DUAL
    )  # fmt: skip
    acc = tl.zeros((COLUMNS, O), tl.float32)
    last = tl.minimum((part + 1) * rows_per_part, rows)
    for first in range(part * rows_per_part, last, BLOCK_R):
        r = first + tl.arange(0, BLOCK_R)
        row_mask = r < last
        image, y, x = position(r, width, width)
        loaded = load_after_norm(dn, dn_t, places, z, z_t, r, image, y, x, o, row_mask, side, O, POOL, DUAL)
        _, dz_t = before_norm(loaded, numbers, row_mask[:, None], DUAL)
        patch = patch_tile(src, image, y, x, row_mask, size, C, K, S, PAD, COLUMNS)
        acc = dot(tl.trans(patch), dz_t, acc, PRECISION)
    at = k[:, None] * O + o[None, :]
    tl.store(out + part * part_stride + task * stride + at, acc, mask=(k < K * K * C)[:, None])


@kernel("side", "blocks", "rows", "width")
def before_norm_kernel(
    dn, dn_t, places, z, z_t, side, sums, norm, d_shift, d_scale, d_bias, blocks, d_stride,
    SCALED: tl.constexpr, BIAS: tl.constexpr, dz, dz_t, rows, width,
    O: tl.constexpr, POOL: tl.constexpr, DUAL: tl.constexpr, BLOCK_R: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Write dz and dż, maybe in place of dn and dṅ. The two kernels above read them once for every tap."""
    follow(CHAINED)
    task, o = tl.program_id(1).to(tl.int64), tl.arange(0, O)
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    pictures, row_mask = rows // (width * width), r < rows
    dn += task * pictures * side * side * O
    dn_t += task * pictures * side * side * O
    places += task * pictures * side * side * O
    z += task * rows * O
    z_t += task * rows * O
    image, y, x = position(r, width, width)
    loaded = load_after_norm(dn, dn_t, places, z, z_t, r, image, y, x, o, row_mask, side, O, POOL, DUAL)
    numbers = made_back(
        sums, norm, d_shift, d_scale, d_bias, rows, blocks, d_stride, task, tl.program_id(0) == 0, o,
        O, SCALED, BIAS, DUAL,
    )  # fmt: skip
    at, mask = (task * rows + r)[:, None] * O + o[None, :], row_mask[:, None]
    found, found_t = before_norm(loaded, numbers, mask, DUAL)
    tl.store(dz + at, found, mask=mask)
    if DUAL:
        tl.store(dz_t + at, found_t, mask=mask)
