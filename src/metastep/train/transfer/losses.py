"""Meta-networks θ, which weigh a source's features, and the losses of an iteration, pure functions of φ, θ and batch.

A pair (m, n) lets the m-th feature of the source guide the n-th of the target; both count from 0, the source first.
Matching layers bring the target's features to the source's channels. The transfer loss is Σ over pairs of mean over
pictures of λ Σ_c w_c mean over pixels (S^m − r(T^n))².
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import conv2d, cross_entropy, interpolate, linear, relu6

from metastep.core.trees import Tree
from metastep.errors import MetastepError
from metastep.train.transfer.features import Tapped, batch_statistics, feature_shapes, tap

Pair = tuple[int, int]


class Weights(NamedTuple):
    """For each picture: how much every channel counts (they sum to 1), and how much the pair does (0 to 6)."""

    what: Tensor  # (batch, C_m)
    where: Tensor  # (batch,)


class MetaNetworks(nn.Module):
    """w = softmax(Linear(GAP S^m)), starting from 1/C_m, and λ = ReLU6(Linear(GAP S^m)), from about 1, for each pair.

    uniform: λ starts from exactly 1, which makes weights that are never learned a fair thing to compare with.
    """

    def __init__(self, pairs: Sequence[Pair], channels: Sequence[int], uniform: bool = False) -> None:
        super().__init__()
        self.pairs = tuple(pairs)
        self.what = nn.ModuleDict({named(pair): _what(channels[pair[0]]) for pair in pairs})
        self.where = nn.ModuleDict({named(pair): _where(channels[pair[0]], uniform) for pair in pairs})

    def forward(self, pooled: Sequence[Tensor]) -> list[Weights]:
        """`pooled` has GAP S^m, (batch, C_m), for each feature of the source; the weights are those of each pair"""
        weights: dict[Pair, Weights] = {}
        for m, pairs in grouped(self.pairs, 0).items():  # losses of the same feature share one product
            what, where = _together(self.what, pairs, pooled[m]), _together(self.where, pairs, pooled[m])
            shares, amounts = what.view(len(what), len(pairs), -1).softmax(2), relu6(where)
            weights |= {pair: Weights(shares[:, i], amounts[:, i]) for i, pair in enumerate(pairs)}
        return [weights[pair] for pair in self.pairs]


class Matching(nn.Module):
    """r^{m,n}: a 1×1 convolution from C_n to C_m channels for each pair; it is learned with the target, a part of φ."""

    def __init__(self, pairs: Sequence[Pair], source: Sequence[int], target: Sequence[int]) -> None:
        super().__init__()
        self.pairs = tuple(pairs)
        self.convolutions = nn.ModuleDict({named((m, n)): nn.Conv2d(target[n], source[m], 1) for m, n in pairs})

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Return for each taught feature of the target r^{m,n} of all its pairs, joined along channels."""
        return [_together(self.convolutions, pairs, features[n]) for n, pairs in grouped(self.pairs, 1).items()]


def grouped(pairs: Sequence[Pair], side: int) -> dict[int, list[Pair]]:
    """Pairs that share their source feature (side 0) or their target feature (side 1), by that feature"""
    return {n: [pair for pair in pairs if pair[side] == n] for n in sorted({pair[side] for pair in pairs})}


def _together(layers: nn.ModuleDict, pairs: Sequence[Pair], x: Tensor) -> Tensor:
    """Apply the layers of these pairs to their one input, as one layer with all their outputs."""
    chosen = [layers[named(pair)] for pair in pairs]
    weight, bias = (torch.cat([getattr(layer, part) for layer in chosen]) for part in ("weight", "bias"))
    return conv2d(x, weight, bias) if weight.dim() == 4 else linear(x, weight, bias)


class Guidance(NamedTuple):
    """All that stands between a source and a target."""

    source: Tapped
    networks: MetaNetworks
    matching: Matching
    sizes: dict[int, tuple[int, int]]  # (height, width) of each feature of the target that is taught


def guidance(source: Tapped, target: Tapped, pairs: str, x: Tensor, uniform: bool = False) -> Guidance:
    """Meta-networks and matching layers for any two modules; one batch `x` of pictures gives the sizes.

    pairs: "all-to-all", "one-to-one", or a list such as "0-1,2-3", the source's feature first.
    """
    given, taken = feature_shapes(source, x), feature_shapes(target, x)
    chosen = pairs_named(pairs, len(given), len(taken))
    widths = [channels for channels, _, _ in given]
    networks = MetaNetworks(chosen, widths, uniform)
    matching = Matching(chosen, widths, [channels for channels, _, _ in taken])
    return Guidance(source, networks.to(x), matching.to(x), {n: taken[n][1:] for _, n in chosen})


def named(pair: Pair) -> str:
    return f"{pair[0]}-{pair[1]}"


def pairs_named(text: str, sources: int, targets: int) -> list[Pair]:
    if text == "all-to-all":
        return [(m, n) for m in range(sources) for n in range(targets)]
    if text == "one-to-one" and sources != targets:
        raise MetastepError(
            f"one-to-one pairs need as many features of the source ({sources}) as of the target ({targets}). "
            'Choose all-to-all, or give a list such as "0-0,1-2", the source first.'
        )
    if text == "one-to-one":
        return [(i, i) for i in range(sources)]
    pairs = [_pair(part.strip(), sources, targets, text) for part in text.split(",")]
    if twice := [named(pair) for pair in pairs if pairs.count(pair) > 1]:
        raise MetastepError(f'pairs = "{text}": {twice[0]} occurs more than once. Leave the repetition out.')
    return pairs


def _pair(part: str, sources: int, targets: int, text: str) -> Pair:
    m, dash, n = part.partition("-")
    if not (dash and m.isdecimal() and n.isdecimal() and int(m) < sources and int(n) < targets):
        raise MetastepError(
            f'pairs = "{text}": "{part}" is not a pair of a source feature (0 to {sources - 1}) and a target feature '
            f'(0 to {targets - 1}). Write all-to-all, one-to-one, or a list such as "0-1,2-3", the source first.'
        )
    return int(m), int(n)


def _what(channels: int) -> nn.Linear:
    layer = nn.Linear(channels, channels)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _where(channels: int, uniform: bool) -> nn.Linear:
    layer = nn.Linear(channels, 1)
    nn.init.ones_(layer.bias)
    if uniform:
        nn.init.zeros_(layer.weight)
    return layer


# ---- losses


Batch = tuple[Tensor, Tensor]  # pictures (batch, channels, height, width), labels (batch,)


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


class Losses(NamedTuple):
    """L_acc, β L_tfr and their sum: functions (φ, θ, batch) that use the statistics of the batch and keep none."""

    beta: float
    target: Tapped
    guidance: Guidance | None
    guides: Callable[[], Guides]  # what the source makes of the batch; not called where there is none
    buffers: Tree

    def accuracy(self, params: Tree, meta: Tree, batch: Batch) -> Tensor:
        del meta
        return cross_entropy(self._run(params, batch[0], ())[0], batch[1])

    def transfer(self, params: Tree, meta: Tree, batch: Batch) -> Tensor:
        features = self._run(params, batch[0], self.target.layers)[1]
        return self.beta * self.guided(params, meta, features)[0]

    def total(self, params: Tree, meta: Tree, batch: Batch) -> Tensor:
        logits, features = self._run(params, batch[0], self.target.layers)
        return cross_entropy(logits, batch[1]) + self.beta * self.guided(params, meta, features)[0]

    def guided(self, params: Tree, meta: Tree, features: list[Tensor]) -> tuple[Tensor, list[Weights]]:
        """L_tfr of these features, and the weights it was made with"""
        assert self.guidance
        seen = self.guides()
        weights = functional_call(self.guidance.networks, meta, (seen.pooled,))
        matched = functional_call(self.guidance.matching, params["matching"], (features,))
        return transfer_loss(seen.maps, matched, weights, self.guidance.networks.pairs), weights

    def _run(self, params: Tree, x: Tensor, layers: tuple[str, ...]) -> tuple[Tensor, list[Tensor]]:
        with batch_statistics(self.target.module):
            return tap(self.target.module, params["target"], self.buffers, x, layers)
