"""The operators of a chain in PyTorch: im2col and batched products. Any device, any precision; what kernels must equal."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metastep.fused.algebra import Cotangent, Judged, Layer, Parameters
from metastep.fused.chain import Block, Head

BATCH = (1, 2, 3)  # pictures, height, width
Pair = tuple[Tensor, Tensor | None]


class Norm(NamedTuple):
    """Statistics of a block's z over the batch, each (tasks, channels), and its γ and β"""

    mean: Tensor
    rstd: Tensor
    mean_t: Tensor | None
    cross: Tensor | None  # q
    scale: Tensor
    shift: Tensor
    scale_t: Tensor | None
    shift_t: Tensor | None


class Sums(NamedTuple):
    """Of dn over the batch, each (tasks, channels): dβ, dγ, and their derivatives"""

    shift: Tensor
    scale: Tensor
    shift_t: Tensor | None
    scale_t: Tensor | None


def forward(block: Block, before: Layer | Tensor, params: Parameters) -> Layer:
    columns, columns_t = input_columns(block, before)
    w, w_t = params.pair(block.weight)
    shape = (*columns.shape[:1], -1, block.out_size, block.out_size, block.outputs)
    z = torch.bmm(columns, w).view(shape)
    z_t = None if w_t is None else _sum(_product(columns_t, w), torch.bmm(columns, w_t)).view(shape)
    return Layer(block, z, z_t, statistics(block, z, z_t, params), (columns, columns_t))


def statistics(block: Block, z: Tensor, z_t: Tensor | None, params: Parameters) -> Norm:
    var, mean = torch.var_mean(z, BATCH, correction=0)
    rstd = torch.rsqrt(var + block.eps)
    mean_t, cross = None, None
    if z_t is not None:
        mean_t = z_t.mean(BATCH)
        cross = (_wide(rstd) * (z - _wide(mean)) * z_t).mean(BATCH)
    (scale, scale_t), (shift, shift_t) = params.pair(block.scale), params.pair(block.shift)
    return Norm(mean, rstd, mean_t, cross, scale, shift, scale_t, shift_t)


def normalised(layer: Layer) -> Pair:
    """ẑ and ẑ˙"""
    norm = layer.norm
    z_hat = (layer.z - _wide(norm.mean)) * _wide(norm.rstd)
    if layer.z_t is None or norm.mean_t is None or norm.cross is None:
        return z_hat, None
    return z_hat, _wide(norm.rstd) * (layer.z_t - _wide(norm.mean_t) - z_hat * _wide(norm.cross))


def activation(layer: Layer) -> Pair:
    """a and ȧ"""
    norm, (z_hat, z_hat_t) = layer.norm, normalised(layer)
    n = torch.addcmul(_wide(norm.shift), z_hat, _wide(norm.scale))
    if z_hat_t is None or norm.scale_t is None or norm.shift_t is None:
        return n.relu_(), None
    n_t = _wide(norm.scale_t) * z_hat + _wide(norm.scale) * z_hat_t + _wide(norm.shift_t)
    return n.relu(), n_t * (n > 0)


def head(head: Head, last: Layer, params: Parameters, y: Tensor, out: Tensor) -> Judged:
    (w, w_t), (b, b_t) = params.pair(head.weight), params.pair(head.bias)
    a, a_t = activation(last)
    f, f_t = a.flatten(2), None if a_t is None else a_t.flatten(2)
    logits = torch.baddbmm(b[:, None], f, w)
    log_p = logits.log_softmax(-1)
    p, pictures = log_p.exp(), y.shape[1]
    d = (p - F.one_hot(y, head.ways)) / pictures
    df, df_t, d_t = torch.bmm(d, w.mT), None, None
    if w_t is not None and b_t is not None and f_t is not None:
        logits_t = torch.baddbmm(b_t[:, None], f_t, w) + torch.bmm(f, w_t)
        d_t = p * (logits_t - (p * logits_t).sum(-1, keepdim=True)) / pictures
        df_t = torch.bmm(d_t, w.mT) + torch.bmm(d, w_t.mT)
    head.weight.of(out).copy_(_product_rule(f, f_t, d, d_t))
    head.bias.of(out).copy_((d if d_t is None else d_t).sum(1))
    loss = -log_p.gather(-1, y[..., None]).mean((1, 2))
    accuracy = (logits.argmax(-1) == y).to(logits.dtype).mean(1)
    shape = last.z.shape
    return Judged(loss, accuracy, cotangent(last, df.view(shape), None if df_t is None else df_t.view(shape), out))


def cotangent(layer: Layer, da: Tensor, da_t: Tensor | None, out: Tensor) -> Cotangent:
    """dn from da, with its sums; those that are gradients of γ and β go into `out`"""
    z_hat, z_hat_t = normalised(layer)
    open_ = z_hat * _wide(layer.norm.scale) + _wide(layer.norm.shift) > 0
    dn, dn_t = da * open_, None if da_t is None else da_t * open_
    shift, scale = dn.sum(BATCH), (dn * z_hat).sum(BATCH)
    shift_t, scale_t = None, None
    if dn_t is not None and z_hat_t is not None:
        shift_t, scale_t = dn_t.sum(BATCH), (dn_t * z_hat + dn * z_hat_t).sum(BATCH)
    layer.block.shift.of(out).copy_(shift if shift_t is None else shift_t)
    layer.block.scale.of(out).copy_(scale if scale_t is None else scale_t)
    return Cotangent(dn, dn_t, Sums(shift, scale, shift_t, scale_t))


def before_norm(layer: Layer, back: Cotangent) -> Pair:
    """dz and dż, (tasks, rows, channels)"""
    norm, sums, count = layer.norm, back.sums, layer.z[0, ..., 0].numel()
    z_hat, z_hat_t = normalised(layer)
    gain, mean, slope = norm.rstd * norm.scale, sums.shift / count, sums.scale / count
    e = back.dn - _wide(mean) - z_hat * _wide(slope)
    dz = (_wide(gain) * e).flatten(1, 3)
    if back.dn_t is None or sums.shift_t is None or sums.scale_t is None or z_hat_t is None:
        return dz, None
    assert norm.cross is not None
    assert norm.scale_t is not None
    gain_t = norm.rstd * (norm.scale_t - norm.rstd * norm.cross * norm.scale)
    e_t = back.dn_t - _wide(sums.shift_t / count) - z_hat_t * _wide(slope) - z_hat * _wide(sums.scale_t / count)
    return dz, (_wide(gain_t) * e + _wide(gain) * e_t).flatten(1, 3)


def weight_gradient(before: Layer | Tensor, layer: Layer, back: Cotangent, out: Tensor) -> None:
    del before  # its patches were kept
    layer.block.weight.of(out).copy_(_product_rule(*layer.saved, *before_norm(layer, back)))


def data_gradient(before: Layer, layer: Layer, back: Cotangent, params: Parameters, out: Tensor) -> Cotangent:
    w, w_t = params.pair(layer.block.weight)
    dz, dz_t = before_norm(layer, back)
    da = from_columns(layer.block, torch.bmm(dz, w.mT), before.z)
    da_t = None
    if w_t is not None and dz_t is not None:
        da_t = from_columns(layer.block, torch.bmm(dz_t, w.mT) + torch.bmm(dz, w_t.mT), before.z)
    return cotangent(before, da, da_t, out)


def input_columns(block: Block, before: Layer | Tensor) -> Pair:
    a, a_t = activation(before) if isinstance(before, Layer) else (before, None)
    return to_columns(block, a), None if a_t is None else to_columns(block, a_t)


def to_columns(block: Block, a: Tensor) -> Tensor:
    """The patch that each output position sees: (tasks, rows, kernel · kernel · channels)"""
    p, k, s = block.padding, block.kernel, block.stride
    patches = F.pad(a, (0, 0, p, p, p, p)).unfold(2, k, s).unfold(3, k, s)
    return patches.permute(0, 1, 2, 3, 5, 6, 4).reshape(a.shape[0], -1, k * k * a.shape[-1])


def from_columns(block: Block, columns: Tensor, like: Tensor) -> Tensor:
    """The transpose of `to_columns`: every entry is added where it was read"""
    p, k, s, n = block.padding, block.kernel, block.stride, block.out_size
    tasks, pictures, size, _, channels = like.shape
    patches = columns.view(tasks, pictures, n, n, k, k, channels)
    padded = like.new_zeros(tasks, pictures, size + 2 * p, size + 2 * p, channels)
    for i in range(k):
        for j in range(k):
            padded[:, :, i : i + s * n : s, j : j + s * n : s] += patches[:, :, :, :, i, j]
    return padded[:, :, p : p + size, p : p + size]


def _product_rule(a: Tensor, a_t: Tensor | None, d: Tensor, d_t: Tensor | None) -> Tensor:
    """aᵀd, or its derivative ȧᵀd + aᵀḋ"""
    if d_t is None:
        return torch.bmm(a.mT, d)
    return _sum(_product(None if a_t is None else a_t.mT, d), torch.bmm(a.mT, d_t))


def _product(a: Tensor | None, b: Tensor) -> Tensor | None:
    return None if a is None else torch.bmm(a, b)


def _sum(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a + b


def _wide(x: Tensor) -> Tensor:
    """(tasks, channels) beside (tasks, pictures, height, width, channels)"""
    return x[:, None, None, None]
