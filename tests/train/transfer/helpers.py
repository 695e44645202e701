"""A tiny source and target in float64, and the transfer loss once more: naive, in loops, without the library."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import metastep as ms
from metastep.train.config import Outer, Source, Transfer, WhatAndWhere
from metastep.train.transfer.features import Tapped
from metastep.train.transfer.losses import Guidance, guidance

USUAL, THETA = ms.SGD(0.1, 0.9, weight_decay=1e-4), Outer(weight_decay=1e-4)
SOURCE_LAYERS, TARGET_LAYERS = ("first", "second"), ("low", "high")


class Teacher(nn.Module):
    """Features 3×8² and 2×4², from pictures of 8×8"""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Tanh())
        self.second = nn.Sequential(nn.Conv2d(3, 2, 3, stride=2, padding=1), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)).flatten(1)  # type: ignore[no-any-return]


class Pupil(nn.Module):
    """Features 4×8² and 3×2², then a head for 3 classes. Convolutions before BatchNorm have no bias: its gradient would
    be rounding noise, which Adam divides by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.low = nn.ReLU()
        self.conv2 = nn.Conv2d(4, 3, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(3)
        self.high = nn.Tanh()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        low = self.low(self.bn1(self.conv1(x)))
        high = self.high(self.bn2(self.conv2(F.max_pool2d(low, 4))))
        return self.fc(high.mean((-2, -1)))  # type: ignore[no-any-return]


def pupil_by_hand(params: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """(logits, features) of a Pupil on batch statistics"""

    def norm(name: str, x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, params[f"{name}.weight"], params[f"{name}.bias"], training=True)

    low = norm("bn1", F.conv2d(x, params["conv1.weight"], padding=1)).clamp_min(0)
    high = norm("bn2", F.conv2d(F.max_pool2d(low, 4), params["conv2.weight"], padding=1)).tanh()
    return high.mean((2, 3)) @ params["fc.weight"].T + params["fc.bias"], [low, high]


def configured(steps: int = 2, *, inner: Any = USUAL, theta: Outer = THETA, **method: Any) -> Transfer:
    """A configuration; the options of its method are named"""
    return Transfer(
        source=Source(dataset="letters"), method=WhatAndWhere(**method), inner=inner, steps=steps, outer=theta
    )


def parts(seed: int = 0, pairs: str = "all-to-all", uniform: bool = False) -> tuple[Tapped, Guidance]:
    """A target, and how a source guides it: θ and the running statistics away from where they would start"""
    torch.manual_seed(seed)
    source, target = Tapped(Teacher().double(), SOURCE_LAYERS), Tapped(Pupil().double(), TARGET_LAYERS)
    source.module(pictures(32))  # the source's running statistics become its own
    source.module.eval()
    guided = guidance(source, target, pairs, pictures(2), uniform)
    if not uniform:
        for p in guided.networks.parameters():
            nn.init.normal_(p, mean=0.3, std=0.4)
    return target, guided


def pictures(count: int) -> Tensor:
    return torch.randn(count, 1, 8, 8, dtype=torch.float64)


def batches(count: int, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(seed)
    return [(pictures(4), torch.randint(3, (4,))) for _ in range(count)]


def naive_transfer_loss(
    source: Sequence[Tensor],
    target: Sequence[Tensor],
    matching: Mapping[str, Tensor],
    meta: Mapping[str, Tensor],
    pairs: Sequence[tuple[int, int]],
) -> Tensor:
    """L_tfr, picture by picture and channel by channel"""
    total = torch.zeros((), dtype=torch.float64)
    for m, n in pairs:
        name, batch = f"{m}-{n}", len(source[m])
        kernel, bias = (matching[f"convolutions.{name}.{kind}"] for kind in ("weight", "bias"))
        for b in range(batch):
            means = torch.stack([plane.mean() for plane in source[m][b]])
            scores = meta[f"what.{name}.weight"] @ means + meta[f"what.{name}.bias"]
            what = scores.exp() / scores.exp().sum()
            where = (meta[f"where.{name}.weight"] @ means + meta[f"where.{name}.bias"])[0].clamp(0, 6)
            for c in range(len(means)):
                matched = sum(kernel[c, k, 0, 0] * target[n][b, k] for k in range(len(target[n][b]))) + bias[c]
                wanted = naive_resize(source[m][b, c], *target[n].shape[-2:])
                total = total + where * what[c] * ((wanted - matched) ** 2).mean() / batch
    return total


def naive_resize(plane: Tensor, height: int, width: int) -> Tensor:
    """Bilinear between the centres of pixels; beyond the outermost centres, the outermost value"""
    rows, columns = plane.shape
    values = plane.tolist()

    def at(i: int, j: int) -> float:
        y = min(max((i + 0.5) * rows / height - 0.5, 0.0), rows - 1.0)
        x = min(max((j + 0.5) * columns / width - 0.5, 0.0), columns - 1.0)
        top, left = int(y), int(x)
        low, right = min(top + 1, rows - 1), min(left + 1, columns - 1)
        above = (1 - (x - left)) * values[top][left] + (x - left) * values[top][right]
        below = (1 - (x - left)) * values[low][left] + (x - left) * values[low][right]
        return float((1 - (y - top)) * above + (y - top) * below)

    return plane.new_tensor([[at(i, j) for j in range(width)] for i in range(height)])
