"""digits: 1,797 handwritten digits of 8x8 grey levels that come with metastep, for few labels per class."""

import numpy as np

from metastep.data.files import ASSETS, read_pack
from metastep.data.holdout import shuffled_classes
from metastep.data.images import resized
from metastep.data.pictures import LabelledSplits, Pixels, labelled

SIDE = 28
LEVELS = 16  # of ink above the paper's 0
POOL, CHOICES = 40, 20  # of each class for training and for validation; the rest, some 120, are the test


def load_digits(size: int | None = None, seed: int = 0) -> LabelledSplits:
    """Return the digits with ink 255 on paper 0, enlarged by Pillow's bilinear filter."""
    pack = read_pack(ASSETS / "digits.npz", ("images", "labels"))
    images, labels = _as_bytes(pack["images"]), pack["labels"]
    rows = shuffled_classes(labels, seed)
    parts = (slice(POOL), slice(POOL, POOL + CHOICES), slice(POOL + CHOICES, None))
    whole = labelled(resized(images, size or SIDE), labels, tuple("0123456789"))
    train, val, test = (whole.at(sorted(index for row in rows for index in row[part])) for part in parts)
    return LabelledSplits(train, val, test, f"{CHOICES} of each class, drawn with seed {seed}")


def _as_bytes(levels: Pixels) -> Pixels:
    """Spread the levels 0, …, 16 over 0, …, 255."""
    spread: Pixels = np.rint(levels * (255 / LEVELS)).astype(np.uint8)
    return spread
