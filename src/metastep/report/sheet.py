"""Draw pictures for people: episodes of a data set, and queries with their predictions."""

import io
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image, ImageDraw, ImageFont
from PIL.Image import Resampling
from torch import Tensor

from metastep.data.draw import choose, draw, real_counts, streams
from metastep.data.episodes import Episodes
from metastep.data.errors import DataError, printable, problem
from metastep.data.pictures import Pictures
from metastep.errors import how_many
from metastep.train.fewshot.classify import Classified, Prediction
from metastep.train.io import replace_file

TILE = 84  # pixels: photos of 84x84 as they are, drawings of 28x28 three times as large
GAP = 4  # between tiles
SPLIT_GAP = 28  # between support and queries
MARGIN = 20  # around the page, the panels and their contents
LABEL = 170  # width of the names at the left of a panel
HEADER, TITLE = 50, 40  # heights: above the tiles of a panel; above all panels
LINE = 16  # height of a line of a label
WIDEST = 1800  # panels stand side by side as long as the page stays narrower than this
MOST_PIXELS = 10**8
LONGEST = 65_500  # pixels along a side: what JPEG allows

PAGE, PANEL, FRAME = "#ffffff", "#f4f5f7", "#d9dde3"
TEXT, FAINT = "#1f2933", "#7b8794"
SUPPORT, QUERY = "#1f5f99", "#b3541e"
INK, PAPER = (31, 41, 51), (255, 255, 255)


class Panel(NamedTuple):
    """One episode, to be drawn: per class a name, what it belongs to, and its pictures as bytes."""

    labels: list[tuple[str, str]]
    support: Tensor  # uint8 (ways, shots, channels, height, width)
    query: Tensor  # uint8 (ways, queries, channels, height, width)


def contact_sheet(data: Pictures, episodes: Episodes, count: int = 4, seed: int = 0, title: str = "") -> Image.Image:
    """The first `count` episodes of batch 0 of `draw` with this seed, one panel for each."""
    require_drawable(episodes, count)
    (width, height), columns, size = _layout(episodes, count)
    page = Image.new("RGB", size, PAGE)
    write(page, (MARGIN, MARGIN), title, TEXT, size=18, bold=True)
    for number, panel in enumerate(panels(data, episodes, count, seed)):
        row, column = divmod(number, columns)
        corner = (MARGIN + column * (width + MARGIN), MARGIN + TITLE + row * (height + MARGIN))
        page.paste(_drawn(panel, f"Episode {number + 1}", (width, height)), corner)
    return page


def require_drawable(episodes: Episodes, count: int) -> None:
    """Say that a sheet is too large before anything is read for it."""
    _, _, (width, height) = _layout(episodes, count)
    if width * height > MOST_PIXELS or max(width, height) > LONGEST:
        raise DataError(f"a sheet of {width}x{height} pixels is too large. Lower episodes, ways, shots or queries.")


def _layout(episodes: Episodes, count: int) -> tuple[tuple[int, int], int, tuple[int, int]]:
    """Sizes of a panel, how many stand side by side, and sizes of the page"""
    width = LABEL + episodes.images * (TILE + GAP) + SPLIT_GAP + 2 * MARGIN
    height = HEADER + episodes.ways * (TILE + GAP) + MARGIN
    columns = max(1, min(count, (WIDEST - MARGIN) // (width + MARGIN)))
    page = (MARGIN + columns * (width + MARGIN), TITLE + -(-count // columns) * (height + MARGIN) + MARGIN)
    return (width, height), columns, page


def panels(data: Pictures, episodes: Episodes, count: int, seed: int) -> list[Panel]:
    """Episodes with the names of their classes."""
    rows, sizes = data.rows()
    counts = real_counts(sizes, episodes, rows.device, data.names)
    support, query = draw(rows, episodes, seed, 0, count, counts=counts)
    chosen = choose(streams(seed, 0, count, 0, rows.device), episodes, rows.shape[:2], counts).classes
    return [
        Panel([_label(data, index) for index in classes], _bytes(near, episodes), _bytes(far, episodes))
        for classes, near, far in zip(chosen.tolist(), support[0], query[0], strict=True)
    ]


def _label(data: Pictures, index: int) -> tuple[str, str]:
    name, group = data.names[index], data.groups[index] if data.groups else ""
    return readable(name.removeprefix(f"{group}/")), "" if group == name else readable(group)


def readable(name: str) -> str:
    return printable(name).replace("_", " ")


def _bytes(x: Tensor, episodes: Episodes) -> Tensor:
    return (255 * x).round().byte().view(episodes.ways, -1, *x.shape[1:]).cpu()


def _drawn(panel: Panel, title: str, size: tuple[int, int]) -> Image.Image:
    picture = Image.new("RGB", size, PAGE)
    ImageDraw.Draw(picture).rounded_rectangle((0, 0, size[0] - 1, size[1] - 1), 8, PANEL, FRAME)
    write(picture, (MARGIN, MARGIN), title, TEXT, bold=True)
    for i, label in enumerate(panel.labels):
        _put_label(picture, HEADER + i * (TILE + GAP), *label)
    left = MARGIN + LABEL
    _put_tiles(picture, left, "support", SUPPORT, panel.support)
    left += panel.support.shape[1] * (TILE + GAP) + SPLIT_GAP
    _put_tiles(picture, left, "query", QUERY, panel.query)
    return picture


def _put_tiles(picture: Image.Image, left: int, heading: str, colour: str, rows: Tensor) -> None:
    write(picture, (left, MARGIN), heading, colour, bold=True)
    right = left + rows.shape[1] * (TILE + GAP) - GAP - 1
    ImageDraw.Draw(picture).rectangle((left, HEADER - 9, right, HEADER - 8), colour)
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            put_tile(picture, (left + j * (TILE + GAP), HEADER + i * (TILE + GAP)), image)


def put_tile(picture: Image.Image, corner: tuple[int, int], image: Tensor) -> None:
    drawn = tile(image)
    left, top = (at + (TILE - side) // 2 for at, side in zip(corner, drawn.size, strict=True))
    ImageDraw.Draw(picture).rectangle((left - 1, top - 1, left + drawn.width, top + drawn.height), FRAME)
    picture.paste(drawn, (left, top))


def tile(image: Tensor) -> Image.Image:
    """Bytes (channels, height, width) as a picture that fits a tile: as large as whole multiples allow."""
    picture = shown(image)
    if (times := TILE // max(picture.size)) >= 1:
        return picture.resize((picture.width * times, picture.height * times), Resampling.NEAREST)
    picture.thumbnail((TILE, TILE), Resampling.LANCZOS)
    return picture


def shown(image: Tensor) -> Image.Image:
    """Bytes (channels, height, width) as a picture; one channel is ink 255 on paper 0, shown dark on white."""
    if len(image) == 1:
        share = image[0, ..., None].double() / 255
        image = (share * torch.tensor(INK) + (1 - share) * torch.tensor(PAPER)).round().byte().permute(2, 0, 1)
    return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())


def _put_label(picture: Image.Image, top: int, name: str, group: str) -> None:
    lines = [(line, TEXT) for line in wrapped(name, 3)] + [(line, FAINT) for line in wrapped(group, 2) if line]
    start = top + (TILE - LINE * len(lines)) // 2
    for i, (line, colour) in enumerate(lines):
        write(picture, (MARGIN, start + i * LINE), line, colour)


def wrapped(text: str, most: int, width: int = LABEL - MARGIN, *, bold: bool = False) -> list[str]:
    """The words in at most so many lines that fit into so many pixels; what does not fit is cut off."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if font(bold=bold).getlength(longer) <= width or not lines[-1] or len(lines) == most:
            lines[-1] = longer
        else:
            lines.append(word)
    return [_cut(line, width, bold) for line in lines]


def _cut(line: str, width: int, bold: bool) -> str:
    if font(bold=bold).getlength(line) <= width:
        return line
    while line and font(bold=bold).getlength(f"{line}…") > width:
        line = line[:-1]
    return f"{line}…"


def write(
    picture: Image.Image, at: tuple[int, int], text: str, colour: str, *, size: int = 13, bold: bool = False
) -> None:
    ImageDraw.Draw(picture).text(at, text, colour, font(size, bold), anchor="la")


@cache
def font(size: int = 13, bold: bool = False) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(font_file("DejaVuSans-Bold" if bold else "DejaVuSans"), size)


def font_file(face: str) -> str:
    """Return where matplotlib keeps a face of DejaVu."""
    import matplotlib  # late: importing it takes a moment, and only pictures with words need it

    return str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf")


def require_place(path: Path) -> str:
    """Return the format of a picture that is to be written there; refused early, before minutes of reading."""
    if not path.parent.is_dir():
        raise problem(path, "cannot be written: its folder does not exist", "Name a .png file in a folder that exists")
    if path.is_dir():
        raise problem(path, "cannot be written: it is a folder", "Name a .png file in it")
    if (kind := Image.registered_extensions().get(path.suffix.lower())) not in Image.SAVE:
        raise problem(path, "cannot be written: its ending is of no known format", "Name a .png file")
    return str(kind)


def save_picture(picture: Image.Image, path: Path) -> None:
    """Write a picture completely or not at all. If it fails, the old file stays."""
    kind, content = require_place(path), io.BytesIO()
    try:
        picture.save(content, format=kind)
    except (OSError, ValueError) as error:  # a format has limits of its own
        raise problem(path, f"cannot be written as {kind} ({error})", "Name a .png file") from error
    replace_file(path, content.getvalue())


# ---- queries and their predictions


CARD = (152, 184)  # width and height of a query with what is said about it
COLUMNS = 7  # of cards
NAMES = 200  # width of the names of classes
SHOTS = 10  # pictures of a class that are shown at most
HEADLINE, HEADING = 58, 36
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
    height = HEADLINE + classes_height + HEADING + rows * (CARD[1] + GAP) + MARGIN
    page = Image.new("RGB", (width, height), PAGE)
    write(page, (MARGIN, MARGIN), title(result), TEXT, size=18, bold=True)
    put_classes(page, HEADLINE, result)
    put_cards(page, HEADLINE + classes_height, result)
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
        lines = wrapped(readable(name), 2, NAMES - 2 * GAP, bold=True)
        middle = y + (TILE - LINE * (len(lines) + 1)) // 2
        for k, line in enumerate(lines):
            write(page, (MARGIN, middle + k * LINE), line, TEXT, bold=True)
        shown = min(SHOTS, end - start)
        write(page, (MARGIN, middle + len(lines) * LINE), counted(end - start, shown), FAINT)
        for j in range(shown):
            put_tile(page, (MARGIN + NAMES + j * (TILE + GAP), y), result.support[start + j])


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
