"""What the page may ask: its form and limits, and the answers. Strokes of a pen become pictures."""

from base64 import b64encode
from typing import Annotated, Any

import numpy as np
from PIL import Image, ImageDraw
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

from metastep.data.pictures import Pixels
from metastep.errors import MetastepError
from metastep.play.session import Session
from metastep.train.fewshot.classify import drawing, prepare_bytes, takes_drawings

# ---- the strokes of a pen as a picture of the kind that learners of drawings were trained on


Points = list[tuple[float, float]]  # points x, y; the paper is [0, 1] in both

PAPER = 105  # pixels along the side of Omniglot's drawings
PEN = 4  # pixels: as wide as the pen of Omniglot on that paper
SIDE = 0.64  # of the paper: the longer side of a drawing, which is the median in Omniglot
SMALLEST = 0.15  # of the paper: what is smaller is not enlarged further, so that a dot stays a dot


def drawn(strokes: list[Points], size: int) -> Pixels:
    """Return strokes as a picture (1, size, size), centred and scaled, with ink 255 on paper 0.

    It does not matter where and how large somebody draws. On Omniglot's test classes, centring and scaling change the
    accuracy of a learner by less than its interval.
    """
    paper = Image.new("L", (PAPER, PAPER))
    pen = ImageDraw.Draw(paper)
    for stroke in _centred(strokes):
        pen.line(stroke, fill=255, width=PEN, joint="curve")
        for x, y in (stroke[0], stroke[-1]):
            pen.ellipse((x - PEN / 2, y - PEN / 2, x + PEN / 2, y + PEN / 2), fill=255)
    return drawing(np.asarray(paper, np.float32), size)[None]


def _centred(strokes: list[Points]) -> list[Points]:
    """Return the strokes in pixels of the paper, in its middle."""
    points = np.array([point for stroke in strokes for point in stroke])
    low, high = points.min(0), points.max(0)
    scale = SIDE * PAPER / max(*(high - low), SMALLEST)
    move = PAPER / 2 - scale * (low + high) / 2
    return [[(scale * x + move[0], scale * y + move[1]) for x, y in stroke] for stroke in strokes]


# ---- what the page may ask


LARGEST = 10 * 2**20  # bytes of a request
WAYS = (2, 10)  # classes
SHOTS = 20  # the most examples of a class
POINTS, STROKES = 5_000, 200  # the most in a stroke, and in a drawing

Unit = Annotated[float, Field(ge=0, le=1)]
Stroke = Annotated[list[tuple[Unit, Unit]], Field(min_length=1, max_length=POINTS)]
Examples = Annotated[list[Base64Bytes], Field(min_length=1, max_length=SHOTS)]


class Drawing(BaseModel):
    """Strokes on a paper that reaches from 0 to 1 in both directions, y down."""

    model_config = ConfigDict(extra="forbid")
    strokes: Annotated[list[Stroke], Field(min_length=1, max_length=STROKES)]


class Question(BaseModel):
    """Prepared pictures of each class, and those to be named."""

    model_config = ConfigDict(extra="forbid")
    classes: Annotated[list[Examples], Field(min_length=WAYS[0], max_length=WAYS[1])]
    queries: Annotated[list[Base64Bytes], Field(max_length=SHOTS)]


def about(session: Session) -> dict[str, Any]:
    """Return what the page has to know about the learners and the limits."""
    net = session.config.net
    return {
        "draws": takes_drawings(session.config),
        "channels": net.channels,
        "size": net.size,
        "ways": WAYS,
        "shots": SHOTS,
        "largest": LARGEST,
        "learners": [{"name": player.name, "about": player.about} for player in session.players],
    }


def strokes(session: Session, body: bytes) -> dict[str, str]:
    """Return a drawing as the learner sees it."""
    if not takes_drawings(session.config):
        raise MetastepError("this learner was trained on photos. Give it pictures instead of drawings.")
    return _sent(drawn(Drawing.model_validate_json(body).strokes, session.config.net.size))


def picture(session: Session, body: bytes) -> dict[str, str]:
    """Return the content of an image file as the learner sees it."""
    pixels = prepare_bytes(body, "This file", session.config).pixels
    if pixels.min() == pixels.max():
        raise MetastepError(
            "This file: has one colour alone, which tells nothing of its class. Choose another picture."
        )
    return _sent(pixels)


def answer(session: Session, body: bytes) -> dict[str, Any]:
    """Return how long each learner took to adapt, and its probabilities."""
    question = Question.model_validate_json(body)
    classes = [[_received(session, data) for data in examples] for examples in question.classes]
    queries = [_received(session, data) for data in question.queries]
    return {"learners": [one._asdict() for one in session.answer(classes, queries)]}


def _sent(pixels: Pixels) -> dict[str, str]:
    return {"pixels": b64encode(pixels.tobytes()).decode()}


def _received(session: Session, data: bytes) -> Pixels:
    net = session.config.net
    if len(data) != net.channels * net.size**2:
        raise MetastepError(f"a picture of {len(data)} bytes: this learner takes {net.shape}, one byte each.")
    return np.frombuffer(data, np.uint8).reshape(net.channels, net.size, net.size)
