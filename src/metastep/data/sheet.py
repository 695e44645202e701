"""Contact sheets: a few episodes of a data set as one picture, support and queries side by side."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image, ImageDraw, ImageFont
from PIL.Image import Resampling
from torch import Tensor

from metastep.data.draw import choose, draw, real_counts, streams
from metastep.data.episodes import Episodes
from metastep.data.errors import DataError, printable
from metastep.data.pictures import Pictures

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
