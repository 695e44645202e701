"""Printed characters from the fonts that matplotlib ships, and which of them look alike.

Only upright faces are used: DejaVu's oblique faces are the upright ones sheared, which `handwriting` does
anyway, and its serif italics give some Cyrillic letters the form of other letters.
"""

import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional

from metastep.report.sheet import font_file
from study.glyphs.ranges import Ranges
from study.glyphs.strokes import thicken, thin

FACES = (
    "DejaVuSans",  # first: it draws every character, the others only some
    "DejaVuSans-Bold",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
)
# Unicode's categories of letters, numbers and symbols.
STAND_ALONE = frozenset({"Lu", "Ll", "Lt", "Lo", "Nd", "Nl", "No", "Sm", "Sc", "So"})
CANVAS = 64  # pixels of a picture's side
BOX = 44  # pixels of a character's longer side; the rest is the margin that strokes and bends may use
INK = 64  # grey levels above this are ink: hairlines, pale once scaled down, must not break
FONT_SIZE = 72  # most characters are then larger than the box, and are scaled down rather than up
SHORTEST_LINE = 90  # pixels of ink in strokes of three pixels; a bar as long as the box has some 130
BLUR = 2.0  # pixels by which a line may be elsewhere before it counts as another line
SAME_CHARACTER = 0.9  # a face that differs more from the first face draws another form of the character


class Prints(NamedTuple):
    """Characters as each face prints them."""

    ink: Tensor
    """bool (characters, faces, CANVAS, CANVAS)."""
    usable: Tensor
    """bool (characters, faces): whether the face has the character, in the form that the first face has."""


def candidates(ranges: Ranges) -> list[int]:
    """Return the code points of a script that two faces can draw and that are characters of their own.

    Letters, numbers and symbols are; not so accents, punctuation and tone marks, nor letters that Unicode
    takes apart into a base letter and an accent.
    """
    drawable = _charset(FACES[0]) & _charset(FACES[1])
    points = (point for first, last in ranges for point in range(first, last + 1))
    return [point for point in points if point in drawable and _stands_alone(chr(point))]


def typeset(points: Sequence[int]) -> Prints:
    """Print every character in every face; all characters must be drawable in the first."""
    ink = torch.stack([_pictures(points, face) for face in FACES], dim=1)
    prints = fingerprints(ink.flatten(0, 1)).view(len(points), len(FACES), -1)
    off = torch.linalg.vector_norm(prints - prints[:, :1], dim=-1)
    return Prints(ink, ink.any(-1).any(-1) & (off < SAME_CHARACTER))


def legible(points: Sequence[int]) -> tuple[list[int], Tensor]:
    """The characters that are more than dots, and their pictures in the first face."""
    pictures = _pictures(points, FACES[0])
    lines = _one_width(pictures).sum((1, 2)) >= SHORTEST_LINE
    return [point for point, enough in zip(points, lines.tolist(), strict=True) if enough], pictures[lines]


def fingerprints(ink: Tensor) -> Tensor:
    """Unit vectors (pictures, numbers) whose distance says how different pictures look, bold or not.

    Strokes are brought to one width, then blurred so that lines a pixel or two apart still match. In double
    precision, so that every machine draws the same line between alike and different.
    """
    pixel, spot = torch.arange(CANVAS), torch.arange(CANVAS // 4) * 4 + 1.5
    blur = torch.exp(-((spot[:, None] - pixel) ** 2).double() / (2 * BLUR**2))
    return functional.normalize((blur @ _one_width(ink).double() @ blur.T).flatten(1), dim=1)


def distinct(prints: Tensor, distance: float) -> list[int]:
    """Indices that remain when each, in order, is dropped if nearer than `distance` to one kept before."""
    alike = prints @ prints.T > 1 - distance**2 / 2  # |a - b|^2 = 2 - 2ab for unit vectors
    alive = torch.ones(len(prints), dtype=torch.bool)
    for index in range(len(prints)):
        if alive[index]:
            alive[index + 1 :] &= ~alike[index, index + 1 :]
    return [int(index) for index in alive.nonzero()]


def _stands_alone(character: str) -> bool:
    decomposition = unicodedata.decomposition(character)
    accented = bool(decomposition) and not decomposition.startswith("<")
    return unicodedata.category(character) in STAND_ALONE and not accented


def _one_width(ink: Tensor) -> Tensor:
    return thicken(thin(ink, torch.full((len(ink),), 4)))


def _pictures(points: Sequence[int], face: str) -> Tensor:
    return torch.from_numpy(np.stack([_picture(point, face) for point in points]))


def _picture(point: int, face: str) -> NDArray[np.bool_]:
    """The character scaled to fill the box, centred; blank where the face lacks it or it has no ink."""
    canvas = Image.new("L", (CANVAS, CANVAS))
    if point in _charset(face) and (character := _cropped(chr(point), face)) is not None:
        scale = BOX / max(character.size)
        width, height = (max(1, round(side * scale)) for side in character.size)
        small = character.resize((width, height), Image.Resampling.BILINEAR)
        canvas.paste(small, ((CANVAS - width) // 2, (CANVAS - height) // 2))
    return np.asarray(canvas) > INK


def _cropped(character: str, face: str) -> Image.Image | None:
    font = _font(face)
    left, top, right, bottom = (round(side) for side in font.getbbox(character))
    page = Image.new("L", (max(1, right - left), max(1, bottom - top)))
    ImageDraw.Draw(page).text((-left, -top), character, fill=255, font=font)
    box = page.getbbox()
    return page.crop(box) if box else None


@cache
def _font(face: str) -> ImageFont.FreeTypeFont:
    # The basic layout engine is always there, and never swaps or joins characters.
    return ImageFont.truetype(font_file(face), FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)


@cache
def _charset(face: str) -> frozenset[int]:
    return frozenset(FT2Font(font_file(face)).get_charmap())
