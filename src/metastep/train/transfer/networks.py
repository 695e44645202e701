"""Meta-networks θ, which weigh a source's features, and matching layers, which bring a target's to their channels.

A pair (m, n) lets the m-th feature of the source guide the n-th of the target; both count from 0, the source first.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear, relu6

from metastep.errors import MetastepError
from metastep.train.transfer.features import Tapped, feature_shapes

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
        for m, pairs in grouped(self.pairs, 0).items():  # what sees the same feature is one product
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
        """For each feature of the target that is taught: r^{m,n} of all its pairs, one after the other in channels"""
        return [_together(self.convolutions, pairs, features[n]) for n, pairs in grouped(self.pairs, 1).items()]


def grouped(pairs: Sequence[Pair], side: int) -> dict[int, list[Pair]]:
    """Pairs that share their source feature (side 0) or their target feature (side 1), by that feature"""
    return {n: [pair for pair in pairs if pair[side] == n] for n in sorted({pair[side] for pair in pairs})}


def _together(layers: nn.ModuleDict, pairs: Sequence[Pair], x: Tensor) -> Tensor:
    """What the layers of these pairs make of one input, as one layer with all their outputs"""
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
    """Meta-networks and matching layers for any two modules; one batch `x` of pictures tells the sizes.

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


def all_to_all(sources: int, targets: int) -> list[Pair]:
    return [(m, n) for m in range(sources) for n in range(targets)]


def one_to_one(sources: int, targets: int) -> list[Pair]:
    if sources != targets:
        raise MetastepError(
            f"one-to-one pairs need as many features of the source ({sources}) as of the target ({targets}). "
            'Choose all-to-all, or give a list such as "0-0,1-2", the source first.'
        )
    return [(i, i) for i in range(sources)]


def pairs_named(text: str, sources: int, targets: int) -> list[Pair]:
    if text == "all-to-all":
        return all_to_all(sources, targets)
    if text == "one-to-one":
        return one_to_one(sources, targets)
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
