"""What kernels share: the numbers for each channel, and how a tile (rows, channels) is read with them."""

import triton
import triton.language as tl

# Rows of the arrays of numbers for each channel, each (tasks, rows, channels)
A, B, A_T, B_T, MEAN, RSTD, MEAN_T, CROSS = (tl.constexpr(i) for i in range(8))
NORM_ROWS = tl.constexpr(8)
G, U, V, G_T, U_T, V_T = (tl.constexpr(i) for i in range(6))
BACK_ROWS = tl.constexpr(6)


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """acc + a b; 16-bit factors are rounded here, sums and everything that is kept stay in float32"""
    if PRECISION == "bf16":
        acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    else:  # not after a return: Triton would compile this one too
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def _parted(r, by):
    """r // by, where r < 2²²: integer division would take some twenty instructions"""
    return ((r.to(tl.float32) + 0.5) * (1.0 / tl.cast(by, tl.float32))).to(tl.int32)


@triton.jit
def position(r, high, wide):
    """Picture, row and column of the rows r of maps that are high × wide"""
    image = _parted(r, high * wide)
    rest = r - image * (high * wide)
    y = _parted(rest, wide)
    return image, y, rest - y * wide


@triton.jit
def norm_of(norm, c, C: tl.constexpr, DUAL: tl.constexpr):
    """A, B, A˙, B˙ of these channels"""
    a, b = tl.load(norm + A * C + c)[None, :], tl.load(norm + B * C + c)[None, :]
    a_t, b_t = a, b
    if DUAL:
        a_t, b_t = tl.load(norm + A_T * C + c)[None, :], tl.load(norm + B_T * C + c)[None, :]
    return a, b, a_t, b_t


@triton.jit
def back_of(back, o, O: tl.constexpr, DUAL: tl.constexpr):
    """G, U, V, G˙, U˙, V˙"""
    g = tl.load(back + G * O + o)[None, :]
    u = tl.load(back + U * O + o)[None, :]
    v = tl.load(back + V * O + o)[None, :]
    g_t, u_t, v_t = g, u, v
    if DUAL:
        g_t = tl.load(back + G_T * O + o)[None, :]
        u_t = tl.load(back + U_T * O + o)[None, :]
        v_t = tl.load(back + V_T * O + o)[None, :]
    return g, u, v, g_t, u_t, v_t


@triton.jit
def load_pair(array, array_t, at, mask, DUAL: tl.constexpr):
    """Of an array and of its derivative; without a direction, the same twice"""
    value = tl.load(array + at, mask=mask, other=0.0)
    value_t = value
    if DUAL:
        value_t = tl.load(array_t + at, mask=mask, other=0.0)
    return value, value_t


@triton.jit
def activation(z, z_t, numbers, mask, DUAL: tl.constexpr):
    """a and ȧ; 0 outside the mask, as padding is"""
    a, b, a_t, b_t = numbers
    n = z * a + b
    opened = mask & (n > 0)
    n_t = n
    if DUAL:
        n_t = z_t * a + z * a_t + b_t
    return tl.where(opened, n, 0.0), tl.where(opened, n_t, 0.0)


@triton.jit
def before_norm(
    dn, dn_t, places, z, z_t, numbers, r, image, y, x, o, row_mask, side,
    O: tl.constexpr, POOL: tl.constexpr, DUAL: tl.constexpr,
):  # fmt: skip
    """dz and dż of the rows r of z, which are (image, y, x)"""
    at, mask = r[:, None] * O + o[None, :], row_mask[:, None]
    value, value_t = load_pair(z, z_t, at, mask, DUAL)
    if POOL == 1:
        d, d_t = load_pair(dn, dn_t, at, mask, DUAL)
    else:
        window_y, window_x = y // POOL, x // POOL
        pooled = mask & ((window_y < side) & (window_x < side))[:, None]  # an odd edge may be in no window
        at = ((image * side + window_y) * side + window_x)[:, None] * O + o[None, :]
        d, d_t = load_pair(dn, dn_t, at, pooled, DUAL)
        here = tl.load(places + at, mask=pooled, other=0) == (y % POOL * POOL + x % POOL)[:, None]
        d, d_t = tl.where(here, d, 0.0), tl.where(here, d_t, 0.0)
    g, u, v, g_t, u_t, v_t = numbers
    dz = tl.where(mask, g * d + u * value + v, 0.0)
    dz_t = dz
    if DUAL:
        dz_t = tl.where(mask, g * d_t + u * value_t + g_t * d + u_t * value + v_t, 0.0)
    return dz, dz_t


@triton.jit
def patch_tile(
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
