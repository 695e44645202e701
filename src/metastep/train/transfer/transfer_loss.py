"""The transfer loss: Σ over pairs of mean over pictures of λ Σ_c w_c mean over pixels (S^m − r(T^n))²."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from metastep.errors import MetastepError
from metastep.train.transfer.features import tap
from metastep.train.transfer.networks import Guidance, Pair, Weights, grouped


class Guides(NamedTuple):
    """What the source has to say about a batch: φ and θ change none of it."""

    maps: list[Tensor]  # for each feature of the target that is taught: S^m of its pairs at its size, side by side
    pooled: list[Tensor]  # GAP S^m, (batch, C_m), for each feature of the source


@torch.no_grad()
def guides(guidance: Guidance, x: Tensor) -> Guides:
    """One forward pass of the source; each of its maps is resized once for each size that it is wanted at"""
    maps = tap(guidance.source.module, {}, {}, x, guidance.source.layers)[1]
    wanted = grouped(guidance.networks.pairs, 1).items()
    at_size = {(m, guidance.sizes[n]): None for n, pairs in wanted for m, _ in pairs}
    found = {(m, size): resized(maps[m], size) for m, size in at_size}
    side_by_side = [torch.cat([found[m, guidance.sizes[n]] for m, _ in pairs], 1) for n, pairs in wanted]
    return Guides(side_by_side, [each.mean((-2, -1)) for each in maps])


def resized(feature: Tensor, size: tuple[int, int]) -> Tensor:
    if feature.shape[-2:] == size:
        return feature
    # On a GPU, PyTorch resizes small maps of many channels 50 times faster where the channels lie together.
    together = feature.contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if together is feature else torch.contiguous_format
    return interpolate(together, size=size, mode="bilinear", align_corners=False).contiguous(memory_format=layout)


def transfer_loss(
    maps: Sequence[Tensor], matched: Sequence[Tensor], weights: Sequence[Weights], pairs: Sequence[Pair]
) -> Tensor:
    """L_tfr, without β; `matched` are the target's features after the matching layers"""
    of_pair = dict(zip(pairs, weights, strict=True))
    losses = [
        feature_loss(map, feature, [of_pair[pair] for pair in taught])
        for map, feature, taught in zip(maps, matched, grouped(pairs, 1).values(), strict=True)
    ]
    return torch.stack(losses).sum()


def feature_loss(map: Tensor, matched: Tensor, weights: Sequence[Weights]) -> Tensor:
    """All that one feature of the target is taught: mean over pictures of Σ over pairs of λ Σ_c w_c (…)²"""
    if map.shape != matched.shape:  # broadcasting would hide it
        raise MetastepError(
            f"a source map {tuple(map.shape)} meets a target feature {tuple(matched.shape)}: pictures have another "
            "size than the batch that the pairs were built with. Build them with pictures of this size."
        )
    distance = (map - matched).square().mean((-2, -1))  # (batch, Σ C_m)
    importance = torch.cat([weight.where[:, None] * weight.what for weight in weights], 1)
    return (importance * distance).sum(1).mean()
