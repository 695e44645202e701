"""Thinner and thicker strokes, on whole stacks of pictures.

A picture is a boolean canvas (..., height, width), true where there is ink. Neighbours are read by rolling
the canvas, so a picture needs an empty margin wider than the change of its strokes.
"""

import torch
from torch import Tensor


def thicken(ink: Tensor) -> Tensor:
    """Ink that has grown by one pixel up, down, left and right."""
    return ink | ink.roll(1, -1) | ink.roll(-1, -1) | ink.roll(1, -2) | ink.roll(-1, -2)


def thin(ink: Tensor, passes: Tensor) -> Tensor:
    """Peel layers off the ink, `passes` many (one number per picture): down to thin lines, never to nothing.

    Each pass erodes, and keeps what the eroded ink could not grow back to: a line, a tip, a dot. Filled
    shapes shrink, strokes become their centre line, as if the character had been drawn with a finer pen.
    """
    lines = torch.zeros_like(ink)
    for done in range(int(passes.max())):
        active = (passes > done)[:, None, None]
        core = _eroded(ink)
        lines |= ink & ~_grown_to_corners(core) & active
        ink = torch.where(active, core, ink)
    return ink | lines


def _eroded(ink: Tensor) -> Tensor:
    return ~thicken(~ink)


def _grown_to_corners(ink: Tensor) -> Tensor:
    wide = ink | ink.roll(1, -1) | ink.roll(-1, -1)
    return wide | wide.roll(1, -2) | wide.roll(-1, -2)
