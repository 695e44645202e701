"""Use the page of `metastep play` as a person does, with characters that no learner of Omniglot was trained on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep import Learner
from metastep.data.registry import load
from metastep.play.server import Server
from metastep.play.session import Session
from study.tracing import Point, traced

CLASSES = {  # a name to type, and the glyph
    "Omega": "GREEK CAPITAL LETTER OMEGA",
    "Ain": "ARABIC LETTER AIN",
    "Two": "LAO DIGIT TWO",
    "Keh": "ARMENIAN CAPITAL LETTER KEH",
    "Shin": "HEBREW LETTER SHIN",
}
# Two drawings of each. They were chosen because the untrained net is wrong on most of them. On other drawings all
# learners err at times: `python -m study run play_strokes` counts.
EXAMPLE, NEW = 0, 19
LEARNER = "omniglot-5w1s"


@contextmanager
def served(learner: str = LEARNER) -> Iterator[Server]:
    """Serve the page on any free port."""
    with Server(Session.of(Learner.load(learner)), "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def glyphs(drawing: int) -> list[NDArray[np.uint8]]:
    """Return one drawing of each class."""
    pictures = load("glyphs").classes("test")
    names = [name.partition(" ")[2] for name in pictures.names]
    rows, _ = pictures.rows()
    return [rows[names.index(name), drawing, 0].numpy() for name in CLASSES.values()]


def teach(page: Any) -> None:
    """Name the classes, and draw an example of each."""
    while page.locator(".class").count() < len(CLASSES):
        page.click("#add-class")
    for index, (name, picture) in enumerate(zip(CLASSES, glyphs(EXAMPLE), strict=True)):
        page.locator(".class input[maxlength]").nth(index).fill(name)
        draw(page, page.locator(".class .paper > canvas").nth(index), traced(picture))


def ask(page: Any, index: int) -> list[str]:
    """Draw the class anew, and return what each learner names."""
    if page.locator("#query button").is_enabled():
        page.click("#query button")  # clear
    draw(page, page.locator("#query canvas"), traced(glyphs(NEW)[index]))
    named: list[str] = page.locator(".answer .best .row span:first-child").all_inner_texts()
    return named


def draw(page: Any, canvas: Any, strokes: list[list[Point]]) -> None:
    """Move the mouse along strokes, and wait for the answers."""
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    for stroke in strokes:
        points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke[::3] + stroke[-1:]]
        page.mouse.move(*points[0])
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*point)
        page.mouse.up()
    page.wait_for_selector("#answers[aria-busy=false]")
