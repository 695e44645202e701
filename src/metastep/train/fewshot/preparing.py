"""A user's pictures, made like those that a learner was trained on: channels, size, and which way round the ink is.

Drawings (glyphs, Omniglot) have ink 255 on paper 0, as every picture of their training sets does exactly. A photo of
ink on paper is mostly the other way round, and its paper is grey; it is inverted and stretched to be like them.
"""

from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.Image import Resampling

from metastep.data.files import read_bytes
from metastep.data.images import open_picture, read_picture
from metastep.data.pictures import Pixels
from metastep.errors import MetastepError
from metastep.train.config import FewShot
from metastep.train.fewshot.choices import Ink

Greys = NDArray[np.float32]

DRAWINGS = ("glyphs", "omniglot")
FAINTEST = 16  # of 255: a picture with less contrast is taken for blank, and its noise not made larger
TAILS = (0.1, 99.9)  # percentiles that stand for the darkest and the brightest: single pixels may be dust


class Prepared(NamedTuple):
    pixels: Pixels
    """uint8 (channels, size, size)"""
    inverted: bool


def takes_drawings(config: FewShot) -> bool:
    """Whether a learner was trained on ink 255 on paper 0"""
    return config.data.name in DRAWINGS and config.net.channels == 1


def prepare(path: Path, config: FewShot, ink: Ink = "auto") -> Prepared:
    """The image file as `config` was trained on; `ink` is darker or lighter than the paper, or to be found out."""
    if ink not in get_args(Ink):
        raise MetastepError(f"ink = {ink!r}: choose one of {', '.join(get_args(Ink))}.")
    size = config.net.size
    if not takes_drawings(config):
        return Prepared(read_picture(path, size, config.net.channels), inverted=False)
    picture = open_picture(read_bytes(path), path, smallest=size).convert("L")
    grey = np.asarray(picture, np.float32)
    inverted = ink == "dark" or (ink == "auto" and has_dark_ink(grey))
    return Prepared(drawing(255 - grey if inverted else grey, size)[None], inverted)


def has_dark_ink(grey: Greys) -> bool:
    """The border is paper: is there more that is darker than it, or more that is brighter?"""
    paper = paper_of(grey)
    darkest, brightest = np.percentile(grey, TAILS)
    down, up = paper - darkest, brightest - paper
    return bool(paper > 127 if down == up else down > up)


def paper_of(grey: Greys) -> float:
    """The median brightness along the border"""
    return float(np.median(np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])))


def drawing(grey: Greys, size: int) -> Pixels:
    """Bright ink on any paper -> ink 255 on paper 0, (size, size); filled up with paper to a square, not stretched"""
    ink = np.clip(grey - paper_of(grey), 0, None)
    side = max(ink.shape)
    top, left = ((side - n) // 2 for n in ink.shape)
    square = np.zeros((side, side), np.float32)
    square[top : top + ink.shape[0], left : left + ink.shape[1]] = ink
    small = np.asarray(Image.fromarray(square).resize((size, size), Resampling.LANCZOS)).clip(0)
    peak = float(small.max())
    return np.rint(small * (255 / peak if peak >= FAINTEST else 1)).clip(0, 255).astype(np.uint8)
