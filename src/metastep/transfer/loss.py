"""The transfer loss: Σ over pairs of mean over pictures of λ Σ_c w_c mean over pixels (S^m − r(T^n))²."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from metastep.errors import MetastepError
from metastep.transfer.features import tap
from metastep.transfer.networks import Guidance, Weights


class Guide(NamedTuple):
    """What the source gives to one pair: its map at the target's size, and channel means at its own (GAP)."""

    map: Tensor  # (batch, C_m, height, width)
    pooled: Tensor  # (batch, C_m)


@torch.no_grad()
def guides(guidance: Guidance, x: Tensor) -> list[Guide]:
    """One forward pass of the source, and one resized map for each pair: φ and θ change none of it."""
    maps = tap(guidance.source.module, {}, {}, x, guidance.source.layers)[1]
    pooled = [each.mean((-2, -1)) for each in maps]
    pairs = zip(guidance.networks.pairs, guidance.sizes, strict=True)
    return [Guide(resized(maps[m], size), pooled[m]) for (m, _), size in pairs]


def resized(feature: Tensor, size: tuple[int, int]) -> Tensor:
    if feature.shape[-2:] == size:
        return feature
    # On a GPU, PyTorch resizes small maps of many channels 50 times faster where the channels lie together.
    together = feature.contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if together is feature else torch.contiguous_format
    return interpolate(together, size=size, mode="bilinear", align_corners=False).contiguous(memory_format=layout)


def transfer_loss(guides: Sequence[Guide], matched: Sequence[Tensor], weights: Sequence[Weights]) -> Tensor:
    """L_tfr, without β; `matched` are the target's features after the matching layers."""
    losses = [
        pair_loss(guide.map, feature, weight) for guide, feature, weight in zip(guides, matched, weights, strict=True)
    ]
    return torch.stack(losses).sum()


def pair_loss(map: Tensor, matched: Tensor, weights: Weights) -> Tensor:
    if map.shape != matched.shape:  # broadcasting would hide it
        raise MetastepError(
            f"a source map {tuple(map.shape)} meets a target feature {tuple(matched.shape)}: pictures have another "
            "size than the batch that the pairs were built with. Build them with pictures of this size."
        )
    distance = (map - matched).square().mean((-2, -1))  # (batch, C_m)
    return (weights.where * (weights.what * distance).sum(1)).mean()
