"""The queries and their predictions as one picture."""

from itertools import accumulate, pairwise

from PIL import Image, ImageDraw

from metastep.data.errors import DataError, printable
from metastep.data.sheet import (
    FAINT,
    FRAME,
    GAP,
    LINE,
    MARGIN,
    PAGE,
    PANEL,
    SUPPORT,
    TEXT,
    TILE,
    font,
    put_tile,
    readable,
    wrapped,
    write,
)
from metastep.errors import how_many
from metastep.train.fewshot.classify import Classified, Prediction

CARD = (152, 184)  # width and height of a query with what is said about it
COLUMNS = 7  # of cards
LABEL = 200  # width of the names of classes
SHOTS = 10  # pictures of a class that are shown at most
TITLE, HEADING = 58, 36
MOST_CARDS = 2_000  # a picture that is larger can hardly be opened

RIGHT, WRONG, UNKNOWN = "#2e7d4f", "#c0392b", SUPPORT
TRACK = "#e3e7ec"


def gallery(result: Classified) -> Image.Image:
    """The classes with the pictures that were adapted to, and below them a card for every query"""
    if len(result.predictions) > MOST_CARDS:
        raise DataError(f"{len(result.predictions):,} queries do not fit into a picture. Give at most {MOST_CARDS:,}.")
    width = 2 * MARGIN + COLUMNS * (CARD[0] + GAP) - GAP
    classes_height = HEADING + len(result.classes) * (TILE + GAP) + MARGIN
    rows = -(-len(result.predictions) // COLUMNS)
    height = TITLE + classes_height + HEADING + rows * (CARD[1] + GAP) + MARGIN
    page = Image.new("RGB", (width, height), PAGE)
    write(page, (MARGIN, MARGIN), title(result), TEXT, size=18, bold=True)
    put_classes(page, TITLE, result)
    put_cards(page, TITLE + classes_height, result)
    return page


def title(result: Classified) -> str:
    pictures, classes = how_many(len(result.predictions), "picture"), how_many(len(result.classes), "class", "classes")
    right = "" if result.accuracy is None else f": {result.accuracy:.1f} % right"
    return f"{pictures}, {classes}{right}"


def put_classes(page: Image.Image, top: int, result: Classified) -> None:
    write(page, (MARGIN, top), "Adapted to", SUPPORT, bold=True)
    top += HEADING - 8
    ends = pairwise(accumulate(result.shots.values(), initial=0))
    for i, (name, (start, end)) in enumerate(zip(result.classes, ends, strict=True)):
        y = top + i * (TILE + GAP)
        lines = wrapped(readable(name), 2, LABEL - 2 * GAP, bold=True)
        middle = y + (TILE - LINE * (len(lines) + 1)) // 2
        for k, line in enumerate(lines):
            write(page, (MARGIN, middle + k * LINE), line, TEXT, bold=True)
        shown = min(SHOTS, end - start)
        write(page, (MARGIN, middle + len(lines) * LINE), counted(end - start, shown), FAINT)
        for j in range(shown):
            put_tile(page, (MARGIN + LABEL + j * (TILE + GAP), y), result.support[start + j])


def put_cards(page: Image.Image, top: int, result: Classified) -> None:
    write(page, (MARGIN, top), "Predictions", SUPPORT, bold=True)
    top += HEADING - 8
    for i, (prediction, picture) in enumerate(zip(result.predictions, result.query, strict=True)):
        row, column = divmod(i, COLUMNS)
        corner = (MARGIN + column * (CARD[0] + GAP), top + row * (CARD[1] + GAP))
        put_card(page, corner, prediction)
        put_tile(page, (corner[0] + (CARD[0] - TILE) // 2, corner[1] + 10), picture)


def put_card(page: Image.Image, corner: tuple[int, int], prediction: Prediction) -> None:
    left, top = corner
    draw, colour, inner = ImageDraw.Draw(page), colour_of(prediction), CARD[0] - 16
    draw.rounded_rectangle((left, top, left + CARD[0] - 1, top + CARD[1] - 1), 8, PANEL, FRAME)
    text = top + TILE + 18
    for k, line in enumerate(wrapped(readable(prediction.name), 2, inner, bold=True)):
        write(page, (left + 8, text + k * LINE), line, colour, bold=True)
    bar = (left + 8, text + 2 * LINE + 5, left + 7 + inner, text + 2 * LINE + 9)
    draw.rounded_rectangle(bar, 2, TRACK)
    draw.rounded_rectangle((*bar[:2], bar[0] + max(4, round(prediction.probability * (inner - 1))), bar[3]), 2, colour)
    share = f"{100 * prediction.probability:.0f} %"
    draw.text((left + CARD[0] - 8, bar[3] + 8), share, colour, font(), anchor="ra")
    write(page, (left + 8, bar[3] + 8), wrapped(under(prediction), 1, inner - 46)[0], FAINT)


def colour_of(prediction: Prediction) -> str:
    if prediction.truth is None:
        return UNKNOWN
    return RIGHT if prediction.truth == prediction.name else WRONG


def under(prediction: Prediction) -> str:
    wrong = prediction.truth is not None and prediction.truth != prediction.name
    return f"is {readable(str(prediction.truth))}" if wrong else printable(prediction.path.name)


def counted(shots: int, shown: int) -> str:
    number = how_many(shots, "shot")
    return number if shown == shots else f"{number}, {shown} shown"
