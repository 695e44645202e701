"""All glyphs, drawn from the fonts that matplotlib ships."""

import numpy as np
import torch

from metastep.data.cache import Arrays
from metastep.data.sets.glyphs import ORDER
from study.glyphs.handwriting import Hand, draw
from study.glyphs.ranges import RANGES
from study.glyphs.typeset import candidates, distinct, fingerprints, legible

HAND = Hand()
MIN_DISTANCE = 0.55  # between the fingerprints of any two classes; below about 0.5 one sees them as the same
BATCH = 32  # classes drawn at a time


def choose_classes() -> list[tuple[int, int]]:
    """Return (index of the script, code point) of the characters that look different from all before them."""
    owner = {point: index for index, script in enumerate(ORDER) for point in candidates(RANGES[script])}
    points, pictures = legible(list(owner))
    kept = distinct(fingerprints(pictures), MIN_DISTANCE)
    return [(owner[points[index]], points[index]) for index in kept]


def draw_glyphs() -> Arrays:
    """Draw the classes of all splits, in the order of the scripts and of their code points.

    `images` are (classes, drawings, 1, height, width). For each class, `points` has its code point and `scripts` its
    index into ORDER.
    """
    scripts, points = zip(*choose_classes(), strict=True)
    batches = [draw(points[start : start + BATCH], HAND) for start in range(0, len(points), BATCH)]
    return {
        "images": torch.cat(batches).numpy(),
        "points": np.array(points, np.int32),
        "scripts": np.array(scripts, np.uint8),
    }
