"""Define what kernels share: the numbers for each channel, and how a tile (rows, channels) is read with them."""

import triton
import triton.language as tl

# Rows of the numbers for each channel, (tasks, rows, channels), in the order of `norm_of`.
A, B, A_T, B_T, MEAN, RSTD, MEAN_T, CROSS = (tl.constexpr(i) for i in range(8))
NORM_ROWS = tl.constexpr(8)


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """Return acc + a b. 16-bit factors are rounded here; sums and everything stored stay in float32."""
    if PRECISION == "bf16":
        acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    else:  # not after a return: Triton would compile this one too
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def _parted(r, by):
    """Return r // by for r < 2²² by a correctly rounded quotient. Integers would take some twenty instructions."""
    return ((r.to(tl.float32) + 0.5) * tl.div_rn(1.0, tl.cast(by, tl.float32))).to(tl.int32)


@triton.jit
def position(r, high, wide):
    """Return picture, row and column of the rows r of maps of high × wide."""
    image = _parted(r, high * wide)
    rest = r - image * (high * wide)
    y = _parted(rest, wide)
    return image, y, rest - y * wide


@triton.jit
def _row(norm, row, c, C: tl.constexpr):
    return tl.load(norm + row * C + c)[None, :]


@triton.jit
def norm_of(norm, c, C: tl.constexpr, DUAL: tl.constexpr):
    """Return A, B, A˙, B˙, mean, r, mean ż and q of these channels."""
    a, b = _row(norm, A, c, C), _row(norm, B, c, C)
    mean, rstd = _row(norm, MEAN, c, C), _row(norm, RSTD, c, C)
    a_t, b_t, mean_t, cross = a, b, mean, rstd
    if DUAL:
        a_t, b_t = _row(norm, A_T, c, C), _row(norm, B_T, c, C)
        mean_t, cross = _row(norm, MEAN_T, c, C), _row(norm, CROSS, c, C)
    return a, b, a_t, b_t, mean, rstd, mean_t, cross


@triton.jit
def load_pair(array, array_t, at, mask, DUAL: tl.constexpr):
    """Load an array and its derivative; without a direction, the array twice."""
    value = tl.load(array + at, mask=mask, other=0.0)
    value_t = value
    if DUAL:
        value_t = tl.load(array_t + at, mask=mask, other=0.0)
    return value, value_t


@triton.jit
def activation(z, z_t, numbers, mask, DUAL: tl.constexpr):
    """Return a and ȧ. They are 0 outside the mask, like padding."""
    a, b, a_t, b_t, _, _, _, _ = numbers
    n = z * a + b
    opened = mask & (n > 0)
    n_t = n
    if DUAL:
        n_t = z_t * a + z * a_t + b_t
    return tl.where(opened, n, 0.0), tl.where(opened, n_t, 0.0)


@triton.jit
def load_after_norm(
    dn, dn_t, places, z, z_t, r, image, y, x, o, row_mask, side, O: tl.constexpr, POOL: tl.constexpr, DUAL: tl.constexpr
):  # fmt: skip
    """Return dn, dṅ, z and ż of the rows r of z, which are (image, y, x)."""
    at, mask = r[:, None] * O + o[None, :], row_mask[:, None]
    value, value_t = load_pair(z, z_t, at, mask, DUAL)
    if POOL == 1:
        d, d_t = load_pair(dn, dn_t, at, mask, DUAL)
    else:
        window_y, window_x = y // POOL, x // POOL
        pooled = mask & ((window_y < side) & (window_x < side))[:, None]  # an odd edge may belong to no window
        at = ((image * side + window_y) * side + window_x)[:, None] * O + o[None, :]
        d, d_t = load_pair(dn, dn_t, at, pooled, DUAL)
        here = tl.load(places + at, mask=pooled, other=0) == (y % POOL * POOL + x % POOL)[:, None]
        d, d_t = tl.where(here, d, 0.0), tl.where(here, d_t, 0.0)
    return d, d_t, value, value_t


@triton.jit
def before_norm(loaded, numbers, mask, DUAL: tl.constexpr):
    """Return dz and dż."""
    d, d_t, value, value_t = loaded
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
    """Return whole patches of a picture with few channels: (rows, K · K · C), padded to COLUMNS."""
    k = tl.arange(0, COLUMNS)
    tap, c = k // C, k % C
    y = yo[:, None] * S + (tap // K)[None, :] - PAD
    x = xo[:, None] * S + (tap % K)[None, :] - PAD
    mask = row_mask[:, None] & (k < K * K * C)[None, :] & (y >= 0) & (y < size) & (x >= 0) & (x < size)
    return tl.load(src + ((image[:, None] * size + y) * size + x) * C + c[None, :], mask=mask, other=0.0)
