"""The operators of a chain as Triton kernels: convolutions read z and normalise it on the way, and sum up what follows.

BatchNorm and ReLU are never passes of their own. A kernel that writes z (or dn) also writes its sums over the rows it
saw; a small kernel then joins the sums in a fixed order, so that results do not depend on which came first, and makes
of them the few numbers for each channel with which every later reader finds what it needs linearly:

    n = A·z + B          ṅ = A·ż + A˙·z + B˙
    dz = G·dn + U·z + V          dż = G·dṅ + U·ż + G˙·dn + U˙·z + V˙

The names follow `algebra`; rows are positions of all pictures of a task.
"""

import triton
import triton.language as tl

# Rows of the arrays of numbers for each channel, each (tasks, rows, channels)
A, B, A_T, B_T, MEAN, RSTD, MEAN_T, CROSS = (tl.constexpr(i) for i in range(8))
NORM_ROWS = 8
G, U, V, G_T, U_T, V_T = (tl.constexpr(i) for i in range(6))
BACK_ROWS = 6


@triton.jit
def _dot(a, b, acc, PRECISION: tl.constexpr):
    """acc + a b; 16-bit factors are rounded here, sums and everything that is kept stay in float32"""
    if PRECISION == "bf16":
        acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    else:
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def _norm_of(norm, c, C: tl.constexpr, DUAL: tl.constexpr):
    """A, B, A˙, B˙ of these channels"""
    a, b = tl.load(norm + A * C + c)[None, :], tl.load(norm + B * C + c)[None, :]
    a_t, b_t = a, b
    if DUAL:
        a_t, b_t = tl.load(norm + A_T * C + c)[None, :], tl.load(norm + B_T * C + c)[None, :]
    return a, b, a_t, b_t


@triton.jit
def _back_of(back, o, O: tl.constexpr, DUAL: tl.constexpr):
    """G, U, V, G˙, U˙, V˙"""
    g, u, v = (
        tl.load(back + G * O + o)[None, :],
        tl.load(back + U * O + o)[None, :],
        tl.load(back + V * O + o)[None, :],
    )
    g_t, u_t, v_t = g, u, v
    if DUAL:
        g_t = tl.load(back + G_T * O + o)[None, :]
        u_t = tl.load(back + U_T * O + o)[None, :]
        v_t = tl.load(back + V_T * O + o)[None, :]
    return g, u, v, g_t, u_t, v_t


@triton.jit
def _activation(z, z_t, a, b, a_t, b_t, mask, DUAL: tl.constexpr):
    """a and ȧ of a tile (rows, channels); 0 outside the mask, as padding is"""
    n = z * a + b
    opened = mask & (n > 0)
    n_t = n
    if DUAL:
        n_t = z_t * a + z * a_t + b_t
    return tl.where(opened, n, 0.0), tl.where(opened, n_t, 0.0)


@triton.jit
def _before_norm(dn, dn_t, z, z_t, g, u, v, g_t, u_t, v_t, mask, DUAL: tl.constexpr):
    """dz and dż of a tile (rows, channels)"""
    dz = tl.where(mask, g * dn + u * z + v, 0.0)
    dz_t = dz
    if DUAL:
        dz_t = tl.where(mask, g * dn_t + u * z_t + g_t * dn + u_t * z + v_t, 0.0)
    return dz, dz_t


@triton.jit
def _parted(r, by):
    """r // by, where r < 2²²: integer division would take some twenty instructions"""
    return ((r.to(tl.float32) + 0.5) * (1.0 / by.to(tl.float32))).to(tl.int32)


@triton.jit
def _position(r, high, wide):
    """Picture, row and column of the rows r of maps that are high × wide"""
    image = _parted(r, high * wide)
    rest = r - image * (high * wide)
    y = _parted(rest, wide)
    return image, y, rest - y * wide


@triton.jit
def _patch_tile(
    src, image, yo, xo, row_mask, size, C: tl.constexpr, K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Whole patches of a picture with few channels, (rows, K · K · C) filled up to COLUMNS"""
    k = tl.arange(0, COLUMNS)
    tap, c = k // C, k % C
    y = yo[:, None] * S + (tap // K)[None, :] - PAD
    x = xo[:, None] * S + (tap % K)[None, :] - PAD
    mask = row_mask[:, None] & (k < K * K * C)[None, :] & (y >= 0) & (y < size) & (x >= 0) & (x < size)
    return tl.load(src + ((image[:, None] * size + y) * size + x) * C + c[None, :], mask=mask, other=0.0)


@triton.jit
def forward_kernel(
    src, src_t, norm, w, w_t, z, z_t, sums, rows, w_stride, size, width,
    C: tl.constexpr, O: tl.constexpr, K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, DUAL: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """z = conv(a⁻, w), ż = conv(ȧ⁻, w) + conv(a⁻, ẇ), and of these rows: mean, Σ(z − mean)², mean ż, Σ(z − mean)ż"""
    block, task = tl.program_id(0), tl.program_id(1).to(tl.int64)
    pictures = rows // (width * width)
    src += task * pictures * size * size * C
    src_t += task * pictures * size * size * C
    norm += task * 8 * C
    w += task * w_stride
    w_t += task * w_stride
    r = block * BLOCK_R + tl.arange(0, BLOCK_R)
    row_mask = r < rows
    image, yo, xo = _position(r, width, width)
    o = tl.arange(0, O)
    acc = tl.zeros((BLOCK_R, O), tl.float32)
    acc_t = tl.zeros((BLOCK_R, O), tl.float32)
    if COLUMNS > 0:
        k = tl.arange(0, COLUMNS)
        patch = _patch_tile(src, image, yo, xo, row_mask, size, C, K, S, PAD, COLUMNS)
        at = k[:, None] * O + o[None, :]
        k_mask = (k < K * K * C)[:, None]
        acc = _dot(patch, tl.load(w + at, mask=k_mask, other=0.0), acc, PRECISION)
        if DUAL:
            acc_t = _dot(patch, tl.load(w_t + at, mask=k_mask, other=0.0), acc_t, PRECISION)
    else:
        y0, x0 = yo * S - PAD, xo * S - PAD
        corner = ((image * size + y0) * size + x0) * C
        for step in range(K * K * (C // BLOCK_K)):
            tap = step // (C // BLOCK_K)
            c = step % (C // BLOCK_K) * BLOCK_K + tl.arange(0, BLOCK_K)
            a, b, a_t, b_t = _norm_of(norm, c, C, DUAL)
            y, x = y0 + tap // K, x0 + tap % K
            mask = (row_mask & (y >= 0) & (y < size) & (x >= 0) & (x < size))[:, None]
            at = (corner + (tap // K * size + tap % K) * C)[:, None] + c[None, :]
            value = tl.load(src + at, mask=mask, other=0.0)
            value_t = value
            if DUAL:
                value_t = tl.load(src_t + at, mask=mask, other=0.0)
            f, f_t = _activation(value, value_t, a, b, a_t, b_t, mask, DUAL)
            w_at = (tap * C + c)[:, None] * O + o[None, :]
            weight = tl.load(w + w_at)
            acc = _dot(f, weight, acc, PRECISION)
            if DUAL:
                acc_t = _dot(f_t, weight, acc_t, PRECISION)
                acc_t = _dot(f, tl.load(w_t + w_at), acc_t, PRECISION)
    out = (task * rows + r)[:, None] * O + o[None, :]
    tl.store(z + out, acc, mask=row_mask[:, None])
    count = tl.minimum(rows - block * BLOCK_R, BLOCK_R).to(tl.float32)
    mean = tl.sum(acc, 0) / count  # rows beyond the last are 0
    away = tl.where(row_mask[:, None], acc - mean[None, :], 0.0)
    sums += (task * tl.num_programs(0) + block) * 4 * O + o
    tl.store(sums, mean)
    tl.store(sums + O, tl.sum(away * away, 0))
    if DUAL:
        tl.store(z_t + out, acc_t, mask=row_mask[:, None])
        tl.store(sums + 2 * O, tl.sum(acc_t, 0) / count)
        tl.store(sums + 3 * O, tl.sum(away * acc_t, 0))


@triton.jit
def statistics_kernel(
    sums, norm, scale, shift, scale_t, shift_t, rows, stride, blocks, eps,
    O: tl.constexpr, BLOCK_R: tl.constexpr, DUAL: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Joins the sums of a block's rows, and makes A, B, A˙, B˙ of them"""
    task, o = tl.program_id(0).to(tl.int64), tl.arange(0, O)
    sums += task * blocks * 4 * O
    total, total_t = tl.zeros((O,), tl.float32), tl.zeros((O,), tl.float32)
    for first in range(0, blocks, MANY):
        b = first + tl.arange(0, MANY)
        count = tl.minimum(rows - b * BLOCK_R, BLOCK_R).to(tl.float32)[:, None]
        at, mask = (b * 4 * O)[:, None] + o[None, :], (b < blocks)[:, None]
        total += tl.sum(count * tl.load(sums + at, mask=mask, other=0.0), 0)
        if DUAL:
            total_t += tl.sum(count * tl.load(sums + at + 2 * O, mask=mask, other=0.0), 0)
    mean, mean_t = total / rows, total_t / rows
    square, product = tl.zeros((O,), tl.float32), tl.zeros((O,), tl.float32)
    for first in range(0, blocks, MANY):
        b = first + tl.arange(0, MANY)
        count = tl.minimum(rows - b * BLOCK_R, BLOCK_R).to(tl.float32)[:, None]
        at, mask = (b * 4 * O)[:, None] + o[None, :], (b < blocks)[:, None]
        away = tl.where(mask, tl.load(sums + at, mask=mask, other=0.0) - mean[None, :], 0.0)
        square += tl.sum(tl.load(sums + at + O, mask=mask, other=0.0) + count * away * away, 0)
        if DUAL:
            away_t = tl.load(sums + at + 2 * O, mask=mask, other=0.0) - mean_t[None, :]
            product += tl.sum(tl.load(sums + at + 3 * O, mask=mask, other=0.0) + count * away * away_t, 0)
    rstd = 1.0 / tl.sqrt(square / rows + eps)
    gamma, beta = tl.load(scale + task * stride + o), tl.load(shift + task * stride + o)
    a = gamma * rstd
    norm += task * 8 * O + o
    tl.store(norm + A * O, a)
    tl.store(norm + B * O, beta - mean * a)
    tl.store(norm + MEAN * O, mean)
    tl.store(norm + RSTD * O, rstd)
    if DUAL:
        cross = rstd * product / rows
        a_t = rstd * (tl.load(scale_t + task * stride + o) - a * cross)
        tl.store(norm + A_T * O, a_t)
        tl.store(norm + B_T * O, tl.load(shift_t + task * stride + o) - a * mean_t - mean * a_t)
        tl.store(norm + MEAN_T * O, mean_t)
        tl.store(norm + CROSS * O, cross)


@triton.jit
def _store_cotangent(
    da, da_t, z, z_t, norm, dn, dn_t, sums, at, mask, o, O: tl.constexpr, DUAL: tl.constexpr,
):  # fmt: skip
    """dn = da·[n > 0], and its sums over these rows: Σdn, Σdn·ẑ, Σdṅ, Σ(dṅ·ẑ + dn·ẑ˙); added to what `sums` holds"""
    value = tl.load(z + at, mask=mask, other=0.0)
    opened = mask & (value * tl.load(norm + A * O + o)[None, :] + tl.load(norm + B * O + o)[None, :] > 0)
    mean, rstd = tl.load(norm + MEAN * O + o), tl.load(norm + RSTD * O + o)
    z_hat = (value - mean[None, :]) * rstd[None, :]
    d = tl.where(opened, da, 0.0)
    tl.store(dn + at, d, mask=mask)
    shift, scale = tl.sum(d, 0), tl.sum(d * z_hat, 0)
    shift_t, scale_t = shift, scale
    if DUAL:
        d_t = tl.where(opened, da_t, 0.0)
        tl.store(dn_t + at, d_t, mask=mask)
        mean_t, cross = tl.load(norm + MEAN_T * O + o), tl.load(norm + CROSS * O + o)
        value_t = tl.load(z_t + at, mask=mask, other=0.0)
        z_hat_t = rstd[None, :] * (value_t - mean_t[None, :] - z_hat * cross[None, :])
        shift_t, scale_t = tl.sum(d_t, 0), tl.sum(d_t * z_hat + d * z_hat_t, 0)
    return shift, scale, shift_t, scale_t


@triton.jit
def head_kernel(
    z, z_t, norm, w, b, w_t, b_t, labels, judged, d_w, d_b, dn, dn_t, sums,
    pictures, stride, out_stride, part_stride, filled,
    C: tl.constexpr, POSITIONS: tl.constexpr, WAYS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_N: tl.constexpr,
    DUAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Logits, cross-entropy and hits of some pictures, the gradient of the head by them, and dn of the last block"""
    block, task = tl.program_id(0), tl.program_id(1).to(tl.int64)
    blocks = tl.num_programs(0)
    i, c, j = block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, C), tl.arange(0, COLUMNS)
    there, real = i < pictures, j < WAYS
    norm += task * 8 * C
    w += task * stride
    w_t += task * stride
    a, rise, a_t, rise_t = _norm_of(norm, c, C, DUAL)
    logits = tl.zeros((BLOCK_N, COLUMNS), tl.float32)
    logits_t = tl.zeros((BLOCK_N, COLUMNS), tl.float32)
    for p in range(POSITIONS):
        at = ((task * pictures + i) * POSITIONS + p)[:, None] * C + c[None, :]
        mask = there[:, None] & (c < C)[None, :]
        value = tl.load(z + at, mask=mask, other=0.0)
        value_t = tl.load(z_t + at, mask=mask, other=0.0) if DUAL else value
        f, f_t = _activation(value, value_t, a, rise, a_t, rise_t, mask, DUAL)
        w_at = (p * C + c)[:, None] * WAYS + j[None, :]
        weight = tl.load(w + w_at, mask=real[None, :], other=0.0)
        logits = _dot(f, weight, logits, PRECISION)
        if DUAL:
            weight_t = tl.load(w_t + w_at, mask=real[None, :], other=0.0)
            logits_t = _dot(f_t, weight, logits_t, PRECISION)
            logits_t = _dot(f, weight_t, logits_t, PRECISION)
    logits += tl.load(b + task * stride + j, mask=real, other=0.0)[None, :]
    logits = tl.where(real[None, :], logits, -float("inf"))
    y = tl.load(labels + task * pictures + i, mask=there, other=0)
    target = j[None, :] == y[:, None]
    top = tl.max(logits, 1)
    exponent = tl.exp(logits - top[:, None])
    total = tl.sum(exponent, 1)
    prob = exponent / total[:, None]
    at_target = tl.sum(tl.where(target, logits, 0.0), 1)
    loss = tl.where(there, tl.log(total) + top - at_target, 0.0)
    first_best = tl.min(tl.where(logits == top[:, None], j[None, :], COLUMNS), 1)
    hit = tl.where(there & (first_best == y), 1.0, 0.0)
    judged += (task * blocks + block) * 2
    tl.store(judged, tl.sum(loss, 0))
    tl.store(judged + 1, tl.sum(hit, 0))
    d = tl.where(there[:, None], (prob - tl.where(target, 1.0, 0.0)) / pictures, 0.0)
    d_t = d
    if DUAL:
        logits_t += tl.load(b_t + task * stride + j, mask=real, other=0.0)[None, :]
        d_t = prob * (logits_t - tl.sum(prob * logits_t, 1)[:, None]) / pictures
        d_t = tl.where(there[:, None] & real[None, :], d_t, 0.0)
    part = block * part_stride + task * out_stride
    tl.store(d_b + part + j, tl.sum(d_t, 0), mask=j < filled)  # 0 behind the last class
    shift, scale = tl.zeros((C,), tl.float32), tl.zeros((C,), tl.float32)
    shift_t, scale_t = tl.zeros((C,), tl.float32), tl.zeros((C,), tl.float32)
    for p in range(POSITIONS):
        at = ((task * pictures + i) * POSITIONS + p)[:, None] * C + c[None, :]
        mask = there[:, None] & (c < C)[None, :]
        value = tl.load(z + at, mask=mask, other=0.0)
        value_t = tl.load(z_t + at, mask=mask, other=0.0) if DUAL else value
        f, f_t = _activation(value, value_t, a, rise, a_t, rise_t, mask, DUAL)
        w_at = (p * C + c)[:, None] * WAYS + j[None, :]
        weight = tl.load(w + w_at, mask=real[None, :], other=0.0)
        grad_w = _dot(tl.trans(f), d_t, tl.zeros((C, COLUMNS), tl.float32), PRECISION)
        da = _dot(d, tl.trans(weight), tl.zeros((BLOCK_N, C), tl.float32), PRECISION)
        da_t = da
        if DUAL:
            weight_t = tl.load(w_t + w_at, mask=real[None, :], other=0.0)
            grad_w = _dot(tl.trans(f_t), d, grad_w, PRECISION)
            da_t = _dot(d_t, tl.trans(weight), tl.zeros((BLOCK_N, C), tl.float32), PRECISION)
            da_t = _dot(d, tl.trans(weight_t), da_t, PRECISION)
        tl.store(d_w + part + w_at, grad_w, mask=real[None, :])
        more = _store_cotangent(da, da_t, z, z_t, norm, dn, dn_t, sums, at, mask, c, C, DUAL)
        shift, scale, shift_t, scale_t = shift + more[0], scale + more[1], shift_t + more[2], scale_t + more[3]
    sums += (task * blocks + block) * 4 * C + c
    tl.store(sums, shift)
    tl.store(sums + C, scale)
    if DUAL:
        tl.store(sums + 2 * C, shift_t)
        tl.store(sums + 3 * C, scale_t)


@triton.jit
def cotangent_kernel(
    sums, norm, scale, scale_t, d_shift, d_scale, d_bias, back, rows, stride, blocks,
    O: tl.constexpr, DUAL: tl.constexpr, MANY: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Joins the sums of dn; writes the gradients of γ and β (or their derivatives), and makes G, U, V, … of them"""
    task, o = tl.program_id(0).to(tl.int64), tl.arange(0, O)
    sums += task * blocks * 4 * O
    shift, slope = tl.zeros((O,), tl.float32), tl.zeros((O,), tl.float32)
    shift_t, slope_t = tl.zeros((O,), tl.float32), tl.zeros((O,), tl.float32)
    for first in range(0, blocks, MANY):
        b = first + tl.arange(0, MANY)
        at, mask = (b * 4 * O)[:, None] + o[None, :], (b < blocks)[:, None]
        shift += tl.sum(tl.load(sums + at, mask=mask, other=0.0), 0)
        slope += tl.sum(tl.load(sums + at + O, mask=mask, other=0.0), 0)
        if DUAL:
            shift_t += tl.sum(tl.load(sums + at + 2 * O, mask=mask, other=0.0), 0)
            slope_t += tl.sum(tl.load(sums + at + 3 * O, mask=mask, other=0.0), 0)
    norm += task * 8 * O + o
    mean, rstd = tl.load(norm + MEAN * O), tl.load(norm + RSTD * O)
    gamma = tl.load(scale + task * stride + o)
    g, m1, m2 = gamma * rstd, shift / rows, slope / rows
    u = -g * rstd * m2
    back += task * 6 * O + o
    tl.store(back + G * O, g)
    tl.store(back + U * O, u)
    tl.store(back + V * O, -g * m1 - u * mean)
    if DUAL:
        mean_t, cross = tl.load(norm + MEAN_T * O), tl.load(norm + CROSS * O)
        g_t = rstd * (tl.load(scale_t + task * stride + o) - g * cross)
        u_t = rstd * (-g_t * m2 - g * slope_t / rows - u * cross)
        tl.store(back + G_T * O, g_t)
        tl.store(back + U_T * O, u_t)
        tl.store(back + V_T * O, -g_t * m1 - g * shift_t / rows - u * mean_t - u_t * mean)
        shift, slope = shift_t, slope_t
    tl.store(d_shift + task * stride + o, shift)
    tl.store(d_scale + task * stride + o, slope)
    if BIAS:
        tl.store(d_bias + task * stride + o, tl.zeros((O,), tl.float32))


@triton.jit
def data_kernel(
    dn, dn_t, z, z_t, back, w, w_t, below, below_t, norm, out, out_t, sums, pictures, stride,
    size, width, C: tl.constexpr, O: tl.constexpr, K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr,
    DUAL: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """da of the block below by the transposed convolution, and from it that block's dn and its sums.

    Input positions that differ by a multiple of the stride see the same taps: they are one phase, S · S in all.
    """
    block, task = tl.program_id(0), tl.program_id(1).to(tl.int64)
    per_phase = tl.num_programs(0) // (S * S)
    phase = block // per_phase
    py, px = phase // S, phase % S
    high, wide = (size - py + S - 1) // S, (size - px + S - 1) // S
    r = block % per_phase * BLOCK_R + tl.arange(0, BLOCK_R)
    row_mask = r < pictures * high * wide
    image, y, x = _position(r, high, wide)
    y, x = y * S + py, x * S + px
    dn += task * pictures * width * width * O
    dn_t += task * pictures * width * width * O
    z += task * pictures * width * width * O
    z_t += task * pictures * width * width * O
    back += task * 6 * O
    w += task * stride
    w_t += task * stride
    c = tl.arange(0, C)
    acc = tl.zeros((BLOCK_R, C), tl.float32)
    acc_t = tl.zeros((BLOCK_R, C), tl.float32)
    ky0, kx0 = (py + PAD) % S, (px + PAD) % S
    across = (K - kx0 + S - 1) // S
    y0, x0 = (y + PAD - ky0) // S, (x + PAD - kx0) // S  # exact: what differs by a multiple of S is another tap
    corner = ((image * width + y0) * width + x0) * O
    for step in range((K - ky0 + S - 1) // S * across * (O // BLOCK_K)):
        tap = step // (O // BLOCK_K)
        o = step % (O // BLOCK_K) * BLOCK_K + tl.arange(0, BLOCK_K)
        g, u, v, g_t, u_t, v_t = _back_of(back, o, O, DUAL)
        down, right = tap // across, tap % across
        yo, xo = y0 - down, x0 - right
        mask = (row_mask & (yo >= 0) & (yo < width) & (xo >= 0) & (xo < width))[:, None]
        at = (corner - (down * width + right) * O)[:, None] + o[None, :]
        d, value = tl.load(dn + at, mask=mask, other=0.0), tl.load(z + at, mask=mask, other=0.0)
        d_t, value_t = d, value
        if DUAL:
            d_t, value_t = tl.load(dn_t + at, mask=mask, other=0.0), tl.load(z_t + at, mask=mask, other=0.0)
        dz, dz_t = _before_norm(d, d_t, value, value_t, g, u, v, g_t, u_t, v_t, mask, DUAL)
        w_at = (((ky0 + down * S) * K + kx0 + right * S) * C + c)[:, None] * O + o[None, :]
        weight = tl.trans(tl.load(w + w_at))
        acc = _dot(dz, weight, acc, PRECISION)
        if DUAL:
            acc_t = _dot(dz_t, weight, acc_t, PRECISION)
            acc_t = _dot(dz, tl.trans(tl.load(w_t + w_at)), acc_t, PRECISION)
    at = ((task * pictures + image) * size * size + y * size + x)[:, None] * C + c[None, :]
    mask = row_mask[:, None] & (c < C)[None, :]
    found = _store_cotangent(acc, acc_t, below, below_t, norm + task * 8 * C, out, out_t, sums, at, mask, c, C, DUAL)
    sums += (task * tl.num_programs(0) + block) * 4 * C + c
    tl.store(sums, found[0])
    tl.store(sums + C, found[1])
    if DUAL:
        tl.store(sums + 2 * C, found[2])
        tl.store(sums + 3 * C, found[3])


@triton.jit
def weight_kernel(
    src, src_t, norm, dn, dn_t, z, z_t, back, out, rows, rows_per_part, stride, part_stride, size, width,
    C: tl.constexpr, O: tl.constexpr, K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, DUAL: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dw = (a⁻)ᵀ dz of one tap and some channels (of all, if few) over a part of the rows, or its derivative"""
    number, part, task = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    tap = number // (C // BLOCK_C)
    pictures = rows // (width * width)
    src += task * pictures * size * size * C
    src_t += task * pictures * size * size * C
    norm += task * 8 * C
    dn += task * rows * O
    dn_t += task * rows * O
    z += task * rows * O
    z_t += task * rows * O
    back += task * 6 * O
    o = tl.arange(0, O)
    WIDE: tl.constexpr = COLUMNS if COLUMNS > 0 else BLOCK_C
    c = number % (C // BLOCK_C) * BLOCK_C + tl.arange(0, WIDE)
    g, u, v, g_t, u_t, v_t = _back_of(back, o, O, DUAL)
    if COLUMNS == 0:
        a, b, a_t, b_t = _norm_of(norm, c, C, DUAL)
    acc = tl.zeros((WIDE, O), tl.float32)
    last = tl.minimum((part + 1) * rows_per_part, rows)
    for first in range(part * rows_per_part, last, BLOCK_R):
        r = first + tl.arange(0, BLOCK_R)
        row_mask = r < last
        image, yo, xo = _position(r, width, width)
        mask = row_mask[:, None]
        at = r[:, None] * O + o[None, :]
        d, value = tl.load(dn + at, mask=mask, other=0.0), tl.load(z + at, mask=mask, other=0.0)
        d_t, value_t = d, value
        if DUAL:
            d_t, value_t = tl.load(dn_t + at, mask=mask, other=0.0), tl.load(z_t + at, mask=mask, other=0.0)
        dz, dz_t = _before_norm(d, d_t, value, value_t, g, u, v, g_t, u_t, v_t, mask, DUAL)
        if COLUMNS > 0:
            patch = _patch_tile(src, image, yo, xo, row_mask, size, C, K, S, PAD, COLUMNS)
            acc = _dot(tl.trans(patch), dz_t, acc, PRECISION)
        else:
            y, x = yo * S + tap // K - PAD, xo * S + tap % K - PAD
            seen = (row_mask & (y >= 0) & (y < size) & (x >= 0) & (x < size))[:, None]
            src_at = ((image * size + y) * size + x)[:, None] * C + c[None, :]
            below = tl.load(src + src_at, mask=seen, other=0.0)
            below_t = below
            if DUAL:
                below_t = tl.load(src_t + src_at, mask=seen, other=0.0)
            f, f_t = _activation(below, below_t, a, b, a_t, b_t, seen, DUAL)
            acc = _dot(tl.trans(f), dz_t, acc, PRECISION)
            if DUAL:
                acc = _dot(tl.trans(f_t), dz, acc, PRECISION)
    at = (tap * C + c)[:, None] * O + o[None, :]
    kept = (c < K * K * C)[:, None] & (o < O)[None, :]
    tl.store(out + part * part_stride + task * stride + at, acc, mask=kept)
