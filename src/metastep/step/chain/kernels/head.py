"""Compute the linear head, its loss and its backward."""

import triton
import triton.language as tl

from metastep.step.chain.kernels.backward import cotangent_of, store_sums
from metastep.step.chain.kernels.following import follow, kernel
from metastep.step.chain.kernels.statistics import made_norm
from metastep.step.chain.kernels.tiles import activation, dot, load_pair


@triton.jit
def _by_channel(x, C: tl.constexpr, BLOCK_F: tl.constexpr):
    """Return sums over positions. Features are the channels of all positions."""
    return tl.sum(tl.reshape(x, (BLOCK_F // C, C)), 0)


@triton.jit
def _cross_entropy(logits, logits_t, y, j, real, there, pictures, COLUMNS: tl.constexpr, DUAL: tl.constexpr):
    """Return loss and hit of each picture, the gradient of the mean loss by the logits, and its derivative."""
    logits = tl.where(real[None, :], logits, -float("inf"))
    target = j[None, :] == y[:, None]
    top = tl.max(logits, 1)
    exponent = tl.exp(logits - top[:, None])
    total = tl.sum(exponent, 1)
    prob = exponent / total[:, None]
    at_target = tl.sum(tl.where(target, logits, 0.0), 1)
    loss = tl.where(there, tl.log(total) + top - at_target, 0.0)
    first_best = tl.min(tl.where(logits == top[:, None], j[None, :], COLUMNS), 1)
    hit = tl.where(there & (first_best == y), 1.0, 0.0)
    d = tl.where(there[:, None], (prob - tl.where(target, 1.0, 0.0)) / pictures, 0.0)
    d_t = d
    if DUAL:
        d_t = prob * (logits_t - tl.sum(prob * logits_t, 1)[:, None]) / pictures
        d_t = tl.where(there[:, None] & real[None, :], d_t, 0.0)
    return loss, hit, d, d_t


@triton.jit
def _logits(
    z, z_t, numbers, w, w_t, b, b_t, i, j, there, real, task, pictures, stride,
    FEATURES: tl.constexpr, WAYS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_F: tl.constexpr,
    DUAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the logits of the pictures i, and their derivative."""
    logits = tl.zeros((BLOCK_N, COLUMNS), tl.float32)
    logits_t = tl.zeros((BLOCK_N, COLUMNS), tl.float32)
    for first in range(0, FEATURES, BLOCK_F):
        k = first + tl.arange(0, BLOCK_F)
        mask, w_mask = there[:, None] & (k < FEATURES)[None, :], (k < FEATURES)[:, None] & real[None, :]
        value, value_t = load_pair(z, z_t, (task * pictures + i)[:, None] * FEATURES + k[None, :], mask, DUAL)
        f, f_t = activation(value, value_t, numbers, mask, DUAL)
        weight, weight_t = load_pair(w, w_t, k[:, None] * WAYS + j[None, :], w_mask, DUAL)
        logits = dot(f, weight, logits, PRECISION)
        if DUAL:
            logits_t = dot(f_t, weight, logits_t, PRECISION)
            logits_t = dot(f, weight_t, logits_t, PRECISION)
    logits += tl.load(b + task * stride + j, mask=real, other=0.0)[None, :]
    if DUAL:
        logits_t += tl.load(b_t + task * stride + j, mask=real, other=0.0)[None, :]
    return logits, logits_t


@triton.jit
def _way_back(
    d, d_t, z, z_t, numbers, w, w_t, d_w, dn, dn_t, i, j, there, real, task, pictures,
    C: tl.constexpr, FEATURES: tl.constexpr, WAYS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_F: tl.constexpr, DUAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the gradient by the weights and dn, from the gradient by the logits. Return the sums of dn per channel."""
    d_shift, d_scale = tl.zeros((BLOCK_F,), tl.float32), tl.zeros((BLOCK_F,), tl.float32)
    d_shift_t, d_scale_t = tl.zeros((BLOCK_F,), tl.float32), tl.zeros((BLOCK_F,), tl.float32)
    for first in range(0, FEATURES, BLOCK_F):
        k = first + tl.arange(0, BLOCK_F)
        mask, w_mask = there[:, None] & (k < FEATURES)[None, :], (k < FEATURES)[:, None] & real[None, :]
        at, w_at = (task * pictures + i)[:, None] * FEATURES + k[None, :], k[:, None] * WAYS + j[None, :]
        value, value_t = load_pair(z, z_t, at, mask, DUAL)
        f, f_t = activation(value, value_t, numbers, mask, DUAL)
        weight, weight_t = load_pair(w, w_t, w_at, w_mask, DUAL)
        grad_w = dot(tl.trans(f), d_t, tl.zeros((BLOCK_F, COLUMNS), tl.float32), PRECISION)
        da = dot(d, tl.trans(weight), tl.zeros((BLOCK_N, BLOCK_F), tl.float32), PRECISION)
        da_t = da
        if DUAL:
            grad_w = dot(tl.trans(f_t), d, grad_w, PRECISION)
            da_t = dot(d_t, tl.trans(weight), tl.zeros((BLOCK_N, BLOCK_F), tl.float32), PRECISION)
            da_t = dot(d, tl.trans(weight_t), da_t, PRECISION)
        tl.store(d_w + w_at, grad_w, mask=w_mask)
        more = cotangent_of(da, da_t, z, z_t, numbers, dn, dn_t, at, mask, DUAL)
        d_shift, d_scale = d_shift + more[0], d_scale + more[1]
        d_shift_t, d_scale_t = d_shift_t + more[2], d_scale_t + more[3]
    return (
        _by_channel(d_shift, C, BLOCK_F),
        _by_channel(d_scale, C, BLOCK_F),
        _by_channel(d_shift_t, C, BLOCK_F),
        _by_channel(d_scale_t, C, BLOCK_F),
    )


@kernel("rows", "per", "pictures", "filled")
def head_kernel(
    z, z_t, sums, norm, scale, shift, scale_t, shift_t, rows, per, eps, SCALED: tl.constexpr,
    w, b, w_t, b_t, labels, judged, d_w, d_b, dn, dn_t, dn_sums,
    pictures, stride, out_stride, part_stride, filled,
    C: tl.constexpr, FEATURES: tl.constexpr, WAYS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_F: tl.constexpr, DUAL: tl.constexpr, PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Write cross-entropy and hits of some pictures, their gradient of the head, and dn of the last block."""
    follow(CHAINED)
    block, task = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i, j = block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, COLUMNS)
    there, real, c = i < pictures, j < WAYS, tl.arange(0, BLOCK_F) % C
    w += task * stride
    w_t += task * stride
    numbers = made_norm(
        sums, norm, scale, shift, scale_t, shift_t, rows, per, eps, stride, task, block == 0, c, C, SCALED, DUAL
    )  # fmt: skip
    logits, logits_t = _logits(
        z, z_t, numbers, w, w_t, b, b_t, i, j, there, real, task, pictures, stride,
        FEATURES, WAYS, COLUMNS, BLOCK_N, BLOCK_F, DUAL, PRECISION,
    )  # fmt: skip
    y = tl.load(labels + task * pictures + i, mask=there, other=0)
    loss, hit, d, d_t = _cross_entropy(logits, logits_t, y, j, real, there, pictures, COLUMNS, DUAL)
    judged += (task * tl.num_programs(0) + block) * 2
    tl.store(judged, tl.sum(loss, 0))
    tl.store(judged + 1, tl.sum(hit, 0))
    part = block * part_stride + task * out_stride
    tl.store(d_b + part + j, tl.sum(d_t, 0), mask=j < filled)  # 0 after the last class
    found = _way_back(
        d, d_t, z, z_t, numbers, w, w_t, d_w + part, dn, dn_t, i, j, there, real, task, pictures,
        C, FEATURES, WAYS, COLUMNS, BLOCK_N, BLOCK_F, DUAL, PRECISION,
    )  # fmt: skip
    store_sums(dn_sums, found, block, task, tl.arange(0, C), C, DUAL)
