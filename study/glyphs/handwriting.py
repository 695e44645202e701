"""Drawings of a character, as if by twenty hands: face, pen, slant, proportions, bends and a slight tremble.

Every random number of a character comes from a generator seeded by its code point alone, so its drawings do
not depend on which other characters are drawn, in what order, or in what batches. All arithmetic is in
double precision: rounding to bytes then gives the same picture on every platform, as long as Pillow's font
renderer does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from study.glyphs.strokes import thicken, thin
from study.glyphs.typeset import Prints, typeset

DRAWINGS = 20
SIDE = 28
OVERSAMPLING = 2  # drawn at twice the size, then averaged: smooth edges


@dataclass(frozen=True)
class Hand:
    """How far a drawing may stray from print, in units of half the picture's side where it is a length."""

    thinnest: int = 5
    """Most layers peeled off the strokes, on the canvas, before they are drawn with a pen of three pixels."""
    boldest: int = 2
    """Fewest layers peeled off."""
    turn: float = 0.25
    """Radians, either way."""
    slant: float = 0.35
    """Horizontal shift per height, either way."""
    stretch: float = 0.2
    """Logarithm of the change of width and height, either way."""
    shift: float = 0.1
    bend: float = 0.16
    """Size of a smooth distortion with 4x4 knots: other proportions and curvatures."""
    tremble: float = 0.05
    """Size of one with 9x9 knots: an unsteady line."""


class Dice(NamedTuple):
    """Random numbers, each field (drawings, count): `face` and `pen` in [0, 1), the others in [-1, 1)."""

    face: Tensor
    pen: Tensor
    turn: Tensor
    slant: Tensor
    stretch: Tensor
    shift: Tensor
    bend: Tensor
    tremble: Tensor


_BEND_KNOTS, _TREMBLE_KNOTS = 4, 9
_COUNTS = [1, 1, 1, 1, 2, 2, 2 * _BEND_KNOTS**2, 2 * _TREMBLE_KNOTS**2]


def draw(points: Sequence[int], hand: Hand) -> Tensor:
    """Twenty drawings of each character: uint8 (characters, 20, 1, 28, 28), ink 255 on paper 0."""
    dice = _throw(points)
    ink = _penned(typeset(points), dice, hand)
    large = functional.grid_sample(ink.double().unsqueeze(1), _paths(dice, hand), align_corners=False)
    # Averaging greys the thin lines; a little contrast makes them black again.
    small = (1.4 * functional.avg_pool2d(large, OVERSAMPLING)).clamp(max=1)
    return (255 * small).round().byte().view(len(points), DRAWINGS, 1, SIDE, SIDE)


def _throw(points: Sequence[int]) -> Dice:
    numbers = [np.random.default_rng(point).random((DRAWINGS, sum(_COUNTS))) for point in points]
    face, pen, *rest = torch.split(torch.from_numpy(np.concatenate(numbers)), _COUNTS, dim=1)
    return Dice(face, pen, *(2 * number - 1 for number in rest))


def _penned(prints: Prints, dice: Dice, hand: Hand) -> Tensor:
    """Each drawing's face, redrawn with its pen: bool (drawings, canvas, canvas)."""
    character = torch.arange(len(prints.ink)).repeat_interleave(DRAWINGS)
    usable = prints.usable[character]
    nth = (dice.face * usable.sum(1, keepdim=True)).long()  # which of the usable faces
    face = ((usable.cumsum(1) > nth) & usable).int().argmax(1)
    layers = hand.boldest + (dice.pen[:, 0] * (hand.thinnest - hand.boldest + 1)).long()
    return thicken(thin(prints.ink[character, face], layers))


def _paths(dice: Dice, hand: Hand) -> Tensor:
    """Return where on the canvas pixels are read, x first and in [-1, 1]: (drawings, height, width, 2)."""
    side = torch.linspace(-1, 1, SIDE * OVERSAMPLING, dtype=torch.double)
    y, x = torch.meshgrid(side, side, indexing="ij")
    straight = torch.einsum("dij,jyx->diyx", _affine(dice, hand), torch.stack([x, y]))
    moved = straight + hand.shift * dice.shift[:, :, None, None]
    bent = moved + hand.bend * _smooth(dice.bend, _BEND_KNOTS)
    unsteady = bent + hand.tremble * _smooth(dice.tremble, _TREMBLE_KNOTS)
    return unsteady.permute(0, 2, 3, 1)


def _affine(dice: Dice, hand: Hand) -> Tensor:
    turn = hand.turn * dice.turn[:, 0]
    slant = hand.slant * dice.slant[:, 0]
    wide, tall = torch.exp(hand.stretch * dice.stretch).unbind(1)
    cos, sin = turn.cos(), turn.sin()
    return torch.stack([cos * wide, (slant - sin) * tall, sin * wide, cos * tall], dim=1).view(-1, 2, 2)


def _smooth(numbers: Tensor, knots: int) -> Tensor:
    """A smooth field (drawings, 2, height, width) whose size is that of the numbers at its knots."""
    pixel = torch.linspace(0, knots - 1, SIDE * OVERSAMPLING, dtype=torch.double)
    bumps = torch.exp(-0.9 * (pixel[:, None] - torch.arange(knots)) ** 2)
    # Scaled so that the field varies as much between the knots as at them.
    bumps /= torch.linalg.vector_norm(bumps, dim=1, keepdim=True)
    return bumps @ numbers.reshape(-1, 2, knots, knots) @ bumps.T
