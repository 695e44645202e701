"""Convolve, and max-pool the result."""

import triton
import triton.language as tl

from metastep.step.chain.kernels.following import follow, kernel
from metastep.step.chain.kernels.statistics import made_norm
from metastep.step.chain.kernels.tiles import activation, dot, load_pair, patch_tile, position


@triton.jit
def _of_patches(
    src, w, w_t, image, yo, xo, row_mask, size,
    C: tl.constexpr, O: tl.constexpr, K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, DUAL: tl.constexpr,
    BLOCK_R: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return z and ż of pictures with few channels, whose patches are read as a whole."""
    k, o = tl.arange(0, COLUMNS), tl.arange(0, O)
    acc = tl.zeros((BLOCK_R, O), tl.float32)
    acc_t = tl.zeros((BLOCK_R, O), tl.float32)
    patch = patch_tile(src, image, yo, xo, row_mask, size, C, K, S, PAD, COLUMNS)
    at = k[:, None] * O + o[None, :]
    k_mask = (k < K * K * C)[:, None]
    acc = dot(patch, tl.load(w + at, mask=k_mask, other=0.0), acc, PRECISION)
    if DUAL:
        acc_t = dot(patch, tl.load(w_t + at, mask=k_mask, other=0.0), acc_t, PRECISION)
    return acc, acc_t


@triton.jit
def _of_taps(
    src, src_t, sums, norm, scale, shift, scale_t, shift_t, seen, per, eps, SCALED: tl.constexpr,
    w, w_t, image, yo, xo, row_mask, block, task, stride, size,
    C: tl.constexpr, O: tl.constexpr, K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, READY: tl.constexpr,
    DUAL: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return z and ż for the output of another block, tap by tap."""
    o = tl.arange(0, O)
    acc = tl.zeros((BLOCK_R, O), tl.float32)
    acc_t = tl.zeros((BLOCK_R, O), tl.float32)
    y0, x0 = yo * S - PAD, xo * S - PAD
    corner = ((image * size + y0) * size + x0) * C
    for group in range(C // BLOCK_K):
        c = group * BLOCK_K + tl.arange(0, BLOCK_K)
        if not READY:
            numbers = made_norm(
                sums, norm, scale, shift, scale_t, shift_t, seen, per, eps, stride, task, block == 0, c,
                C, SCALED, DUAL,
            )  # fmt: skip
        for tap in range(K * K):
            y, x = y0 + tap // K, x0 + tap % K
            mask = (row_mask & (y >= 0) & (y < size) & (x >= 0) & (x < size))[:, None]
            at = (corner + (tap // K * size + tap % K) * C)[:, None] + c[None, :]
            f, f_t = load_pair(src, src_t, at, mask, DUAL)
            if not READY:
                f, f_t = activation(f, f_t, numbers, mask, DUAL)
            w_at = (tap * C + c)[:, None] * O + o[None, :]
            weight = tl.load(w + w_at)
            acc = dot(f, weight, acc, PRECISION)
            if DUAL:
                acc_t = dot(f_t, weight, acc_t, PRECISION)
                acc_t = dot(f, tl.load(w_t + w_at), acc_t, PRECISION)
    return acc, acc_t


@kernel("seen", "per", "rows", "size", "width")
def forward_kernel(
    src, src_t, sums, norm, scale, shift, scale_t, shift_t, seen, per, eps, SCALED: tl.constexpr,
    w, w_t, z, z_t, z_sums, rows, stride, size, width,
    C: tl.constexpr, O: tl.constexpr, K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, READY: tl.constexpr,
    DUAL: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Write z = conv(a⁻, w), ż = conv(ȧ⁻, w) + conv(a⁻, ẇ), and their mean, Σ(z − mean)², mean ż, Σ(z − mean)ż."""
    follow(CHAINED)
    block, task = tl.program_id(0), tl.program_id(1).to(tl.int64)
    pictures = rows // (width * width)
    src += task * pictures * size * size * C
    src_t += task * pictures * size * size * C
    w += task * stride
    w_t += task * stride
    r = block * BLOCK_R + tl.arange(0, BLOCK_R)
    row_mask = r < rows
    image, yo, xo = position(r, width, width)
    if COLUMNS > 0:
        acc, acc_t = _of_patches(
            src, w, w_t, image, yo, xo, row_mask, size, C, O, K, S, PAD, DUAL, BLOCK_R, COLUMNS, PRECISION
        )
    else:
        acc, acc_t = _of_taps(
            src, src_t, sums, norm, scale, shift, scale_t, shift_t, seen, per, eps, SCALED,
            w, w_t, image, yo, xo, row_mask, block, task, stride, size,
            C, O, K, S, PAD, READY, DUAL, BLOCK_R, BLOCK_K, PRECISION,
        )  # fmt: skip
    o = tl.arange(0, O)
    out = (task * rows + r)[:, None] * O + o[None, :]
    tl.store(z + out, acc, mask=row_mask[:, None])
    count = tl.minimum(rows - block * BLOCK_R, BLOCK_R).to(tl.float32)
    mean = tl.sum(acc, 0) / count  # rows after the last are 0
    away = tl.where(row_mask[:, None], acc - mean[None, :], 0.0)
    z_sums += (task * tl.num_programs(0) + block) * 4 * O + o
    tl.store(z_sums, mean)
    tl.store(z_sums + O, tl.sum(away * away, 0))
    if DUAL:
        tl.store(z_t + out, acc_t, mask=row_mask[:, None])
        tl.store(z_sums + 2 * O, tl.sum(acc_t, 0) / count)
        tl.store(z_sums + 3 * O, tl.sum(away * acc_t, 0))


@kernel("made", "per", "rows", "width", "side")
def pool_kernel(
    z, z_t, sums, norm, scale, shift, scale_t, shift_t, made, per, eps, SCALED: tl.constexpr,
    seen, seen_t, ready, ready_t, places, rows, stride, width, side,
    O: tl.constexpr, POOL: tl.constexpr, DUAL: tl.constexpr, BLOCK_R: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Write z, ż, a and ȧ at the first largest n of each window, and its place.

    If no n of a window is positive, its output and gradient are 0 whichever place is taken.
    """
    follow(CHAINED)
    task, o = tl.program_id(1).to(tl.int64), tl.arange(0, O)
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    mask = (r < rows)[:, None]
    image, y, x = position(r, side, side)
    z += task * (rows // (side * side)) * width * width * O
    z_t += task * (rows // (side * side)) * width * width * O
    numbers = made_norm(
        sums, norm, scale, shift, scale_t, shift_t, made, per, eps, stride, task, tl.program_id(0) == 0, o,
        O, SCALED, DUAL,
    )  # fmt: skip
    a, b, _, _, _, _, _, _ = numbers
    corner = ((image * width + y * POOL) * width + x * POOL)[:, None] * O + o[None, :]
    best, best_t = load_pair(z, z_t, corner, mask, DUAL)
    top, place = best * a + b, tl.zeros((BLOCK_R, O), tl.int32)
    for i in tl.static_range(1, POOL * POOL):
        inside = mask & ((y * POOL + i // POOL < width) & (x * POOL + i % POOL < width))[:, None]
        value, value_t = load_pair(z, z_t, corner + (i // POOL * width + i % POOL) * O, inside, DUAL)
        n = value * a + b
        larger = inside & (n > top)
        best, best_t = tl.where(larger, value, best), tl.where(larger, value_t, best_t)
        top, place = tl.where(larger, n, top), tl.where(larger, i, place)
    at = (task * rows + r)[:, None] * O + o[None, :]
    tl.store(seen + at, best, mask=mask)
    tl.store(places + at, place.to(tl.uint8), mask=mask)
    f, f_t = activation(best, best_t, numbers, mask, DUAL)
    tl.store(ready + at, f, mask=mask)
    if DUAL:
        tl.store(seen_t + at, best_t, mask=mask)
        tl.store(ready_t + at, f_t, mask=mask)
