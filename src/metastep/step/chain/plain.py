"""Implement the operators of a chain in PyTorch, for any device and precision. They specify the kernels.

Rows are the positions of all pictures of a task: arrays are (tasks, rows, channels), numbers per channel are
(tasks, 1, channels). Here the z of a layer is stored as ẑ, and the dn of a cotangent as dz, because both are read more
than once.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metastep.step.chain.algebra import Cotangent, Judged, Layer, Parameters
from metastep.step.chain.chain import Block, Head, Slot
from metastep.step.chain.convolution import ByPatches, Pair, maps, mean_product, patches, product_rule, products, whole


class Norm(NamedTuple):
    """Hold r, q, γ and β, each (tasks, 1, channels)."""

    rstd: Tensor
    cross: Tensor | None
    scale: Pair
    shift: Pair


class Kept(NamedTuple):
    by: ByPatches
    seen: Pair  # its form of a⁻ and ȧ⁻
    activation: Pair  # a and ȧ, the input of the next block
    places: Tensor | None  # of the largest entry of each window, if there is pooling


# Numbers in the patches of a task. Conv4 with 64 filters, gradient of one task, ms of one CPU thread by patches and by
# a whole convolution: 5 pictures 2.8 and 3.6, 12 pictures 5.6 and 5.0, 25 pictures 12 and 9, 75 pictures 25 and 18.
MANY = 400_000
room = torch.zeros_like


def forward(block: Block, before: Layer | Tensor, params: Parameters) -> Layer:
    a, a_t = before.saved.activation if isinstance(before, Layer) else (before, None)
    by, w = convolution_for(block, a), params.pair(block.weight)
    seen = by.seen(block, a), None if a_t is None else by.seen(block, a_t)
    z = by.convolved(block, (seen[0], w[0]))
    z_t = None if w[1] is None else by.convolved(block, *product_rule(seen, w))
    norm = Norm(_normalise(z, block.eps), _normalise_t(z, z_t), _wide(params, block.scale), _wide(params, block.shift))
    if z_t is not None:
        z_t.mul_(norm.rstd)
    return Layer(block, z, z_t, norm, Kept(by, seen, *_pooled(block, *_activation(z, z_t, norm))))


def convolution_for(block: Block, a: Tensor) -> ByPatches:
    """Return the convolution by patches, or a whole one for a task with large patches on a CPU."""
    pictures = a.numel() // (block.size**2 * block.inputs)
    many = pictures * block.out_size**2 * block.kernel**2 * block.inputs > MANY
    return whole if len(a) == 1 and many and a.device.type == "cpu" and whole.serves(block) else patches


def _normalise(z: Tensor, eps: float) -> Tensor:
    """Turn z into ẑ in place and return r. Two means are 50 times as fast as torch.var_mean over rows on a CPU."""
    z.sub_(z.mean(1, keepdim=True))
    rstd = torch.rsqrt(mean_product((z, z)) + eps)
    z.mul_(rstd)
    return rstd


def _normalise_t(z_hat: Tensor, z_t: Tensor | None) -> Tensor | None:
    """Turn ż into ẑ˙/r in place and return q."""
    if z_t is None:
        return None
    z_t.sub_(z_t.mean(1, keepdim=True))
    cross = mean_product((z_hat, z_t))
    z_t.addcmul_(z_hat, cross, value=-1)
    return cross


def _activation(z_hat: Tensor, z_hat_t: Tensor | None, norm: Norm) -> Pair:
    (scale, scale_t), (shift, shift_t) = norm.scale, norm.shift
    a = torch.addcmul(shift, z_hat, scale).relu_()
    if z_hat_t is None or scale_t is None or shift_t is None:
        return a, None
    return a, _where_open(torch.addcmul(shift_t, z_hat, scale_t).addcmul_(z_hat_t, scale), a)


def _pooled(block: Block, a: Tensor, a_t: Tensor | None) -> tuple[Pair, Tensor | None]:
    """Return the largest a of each window, ȧ at the same place, and the place."""
    if block.pool == 1:
        return (a, a_t), None
    largest, places = F.max_pool2d(maps(a, block.out_size), block.pool, ceil_mode=block.keeps_edge, return_indices=True)
    a_t = None if a_t is None else _rows(maps(a_t, block.out_size).flatten(2).gather(2, places.flatten(2)), a)
    return (_rows(largest.flatten(2), a), a_t), places


def _unpooled(layer: Layer, d: Tensor) -> Tensor:
    """Return d at the largest entry of each window and 0 elsewhere: the transpose of `_pooled`."""
    block, places = layer.block, layer.saved.places
    if places is None:
        return d
    small = maps(d, block.seen_size).flatten(2)
    spread = small.new_zeros(*small.shape[:2], block.out_size**2)
    return _rows(spread.scatter_(2, places.flatten(2), small), d)


def _rows(found: Tensor, like: Tensor) -> Tensor:
    """Reshape (pictures of all tasks, channels, positions) to (tasks, rows, channels)."""
    return found.transpose(1, 2).reshape(len(like), -1, like.shape[-1])


def head(head: Head, last: Layer, params: Parameters, y: Tensor, out: Tensor) -> Judged:
    (w, w_t), (b, b_t) = params.pair(head.weight), params.pair(head.bias)
    shape = (*y.shape, head.features)
    f, f_t = (None if a is None else a.reshape(shape) for a in last.saved.activation)
    assert f is not None
    logits = torch.baddbmm(b[:, None], f, w)
    log_p = logits.log_softmax(-1)
    p, pictures = log_p.exp(), y.shape[1]
    d = p.scatter_add(-1, y[..., None], p.new_full((*y.shape, 1), -1.0)) / pictures
    df, df_t, d_t = torch.bmm(d, w.mT), None, None
    if w_t is not None and b_t is not None and f_t is not None:
        logits_t = torch.baddbmm(b_t[:, None], f_t, w).baddbmm_(f, w_t)
        d_t = p * (logits_t - (p * logits_t).sum(-1, keepdim=True)) / pictures
        df_t = torch.bmm(d_t, w.mT).baddbmm_(d, w_t.mT)
    head.weight.of(out).copy_(products([(a.mT, b) for a, b in product_rule((f, f_t), (d, d_t))]))
    head.bias.of(out).copy_((d if d_t is None else d_t).sum(1))
    hits = (logits.argmax(-1) == y).to(logits.dtype)
    sums = torch.stack([-log_p.gather(-1, y[..., None])[..., 0], hits], -1).sum(1, keepdim=True)
    return Judged(sums, pictures, _cotangent(last, df, df_t, out))


def weight_gradient(before: Layer | Tensor, layer: Layer, back: Cotangent, out: Tensor) -> None:
    del before  # its patches were kept
    block, saved = layer.block, layer.saved
    block.weight.of(out).copy_(saved.by.to_weight(block, *product_rule(saved.seen, (back.dn, back.dn_t))))


def data_gradient(before: Layer, layer: Layer, back: Cotangent, params: Parameters, out: Tensor) -> Cotangent:
    block, by, dz = layer.block, layer.saved.by, (back.dn, back.dn_t)
    w = params.pair(block.weight)
    da_t = None if dz[1] is None else by.to_input(block, *product_rule(dz, w))
    return _cotangent(before, by.to_input(block, (dz[0], w[0])), da_t, out)


def wait_for(pending: list[None]) -> None:
    del pending  # nothing runs concurrently here


def _cotangent(layer: Layer, da: Tensor, da_t: Tensor | None, out: Tensor) -> Cotangent:
    """Return dz and dż from da. The sums of dn on the way are the gradients of γ and β."""
    block, norm, z_hat, z_hat_t = layer.block, layer.norm, layer.z, layer.z_t
    a, (scale, scale_t) = layer.saved.activation[0], norm.scale
    dn, gain = _unpooled(layer, _where_open(da.view_as(a), a)), norm.rstd * scale
    mean, slope = dn.mean(1, keepdim=True), mean_product((dn, z_hat))
    if da_t is None or z_hat_t is None:
        _write_sums(block, out, mean, slope, z_hat.shape[1])
        return Cotangent(_without(dn, mean, (z_hat, slope)).mul_(gain), None, None)
    dn_t, gain_t = _unpooled(layer, _where_open(da_t.view_as(a), a)), norm.rstd * (scale_t - gain * norm.cross)
    mean_t, slope_t = dn_t.mean(1, keepdim=True), mean_product((dn_t, z_hat), (dn, z_hat_t))
    _write_sums(block, out, mean_t, slope_t, z_hat.shape[1])
    e, e_t = _without(dn, mean, (z_hat, slope)), _without(dn_t, mean_t, (z_hat_t, slope), (z_hat, slope_t))
    return Cotangent(e * gain, e_t.mul_(gain).addcmul_(e, gain_t), None)


def _without(d: Tensor, mean: Tensor, *parts: tuple[Tensor, Tensor]) -> Tensor:
    """Return d − mean − Σ array · number, in place."""
    d.sub_(mean)
    for array, number in parts:
        d.addcmul_(array, number, value=-1)
    return d


def _write_sums(block: Block, out: Tensor, shift: Tensor, scale: Tensor, rows: int) -> None:
    block.shift.of(out).copy_(rows * shift[:, 0])
    if block.scale:
        block.scale.of(out).copy_(rows * scale[:, 0])


def _where_open(d: Tensor, a: Tensor) -> Tensor:
    """Set d to 0 where a is not positive, in place and in one pass: the backward of ReLU."""
    masked: Tensor = torch.ops.aten.threshold_backward.grad_input(d, a, 0, grad_input=d)
    return masked


def _wide(params: Parameters, slot: Slot | None) -> Pair:
    """Return a parameter of each channel as (tasks, 1, channels), or 1 if there is none."""
    if slot is None:
        return params.flat.new_ones(1, 1, 1), None if params.flat_t is None else params.flat.new_zeros(1, 1, 1)
    value, value_t = params.pair(slot)
    return value[:, None], None if value_t is None else value_t[:, None]
