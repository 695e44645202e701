"""Strokes of a pen along a drawing that is known only as a picture."""

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from study.glyphs.strokes import thin

Point = tuple[float, float]
Pixel = tuple[int, int]

CANVAS, MARGIN = 112, 8  # what a picture is enlarged to, and the paper around it that thinning needs
LAYERS = 8  # at most so many are peeled off a line
SMOOTH = 2  # points on each side that a point becomes the mean of: a pen makes no steps
SHORTEST = 4  # points: what is shorter and meets another stroke is a spur of the thinning
GAP = 14  # pixels: an end so near to a line belongs to it
FAR = 10  # points along a stroke, from where on its end may meet the stroke itself


def traced(picture: NDArray[np.uint8]) -> list[list[Point]]:
    """Return strokes, with points x, y in [0, 1], along the ink of a square picture."""
    lines = {(int(x), int(y)) for y, x in np.argwhere(_thinned(picture))}
    strokes: list[list[Point]] = []
    while lines:
        walked = _walk(lines)
        joined = _joined(_smooth(walked), strokes)
        if len(joined) == len(walked) or len(walked) >= SHORTEST:
            strokes.append(joined)
    return [[(x / CANVAS, y / CANVAS) for x, y in stroke] for stroke in strokes]


def _thinned(picture: NDArray[np.uint8]) -> NDArray[np.bool_]:
    large = np.asarray(Image.fromarray(picture).resize((CANVAS, CANVAS), Image.Resampling.BICUBIC)) > 127
    ink = torch.from_numpy(np.pad(large, MARGIN))
    lines: NDArray[np.bool_] = thin(ink[None], torch.tensor([LAYERS]))[0].numpy()
    return lines[MARGIN:-MARGIN, MARGIN:-MARGIN]


def _walk(lines: set[Pixel]) -> list[Pixel]:
    """Follow one line from an end, straight on where lines cross, and take its pixels out of `lines`."""
    here = min(lines, key=lambda pixel: (len(_near(pixel, lines)), pixel))
    walked, direction = [here], (0, 0)
    while True:
        ahead = _near(here, lines, reach=2)
        lines -= {here, *_near(here, lines)}  # with its neighbours: a line may be two pixels wide
        ahead = [p for p in ahead if _along(here, p, direction) >= 0]
        if not ahead:
            return walked
        following = max(ahead, key=lambda p: (_along(here, p, direction), -abs(p[0] - here[0]) - abs(p[1] - here[1])))
        direction = following[0] - here[0], following[1] - here[1]
        here = following
        walked.append(here)


def _near(pixel: Pixel, lines: set[Pixel], reach: int = 1) -> list[Pixel]:
    steps = range(-reach, reach + 1)
    around = [(pixel[0] + x, pixel[1] + y) for x in steps for y in steps if x or y]
    return [p for p in around if p in lines]


def _along(here: Pixel, there: Pixel, direction: tuple[int, int]) -> float:
    """Return how far a stroke continues in a direction."""
    return (there[0] - here[0]) * direction[0] + (there[1] - here[1]) * direction[1]


def _joined(stroke: list[Point], others: list[list[Point]]) -> list[Point]:
    """Return the stroke with its ends at the strokes that it meets, its own included."""
    before = [_nearest(stroke[0], [*others, stroke[FAR:]])]
    after = [_nearest(stroke[-1], [*others, stroke[:-FAR]])]
    return [p for p in [*before, *stroke, *after] if p is not None]


def _nearest(end: Point, strokes: list[list[Point]]) -> Point | None:
    def distance(p: Point) -> float:
        return abs(p[0] - end[0]) + abs(p[1] - end[1])

    nearest = min((p for stroke in strokes for p in stroke), key=distance, default=None)
    return nearest if nearest is not None and distance(nearest) <= GAP else None


def _smooth(stroke: list[Pixel]) -> list[Point]:
    points = np.array(stroke, np.float64)
    windows = (points[max(0, i - SMOOTH) : i + SMOOTH + 1] for i in range(len(points)))
    return [(float(x), float(y)) for x, y in (window.mean(0) for window in windows)]
