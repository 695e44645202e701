"""digits: 1,797 handwritten digits of 8x8 grey levels that come with scikit-learn, for few labels per class."""

import numpy as np

from metastep.data.holdout import shuffled_classes
from metastep.data.images import LabelledSplits, Pixels, labelled
from metastep.data.pictures import resized

SIDE = 28
POOL, CHOICES = 40, 20  # of each class for training and for validation; the rest, some 120, are the test


def load_digits(size: int | None = None, seed: int = 0) -> LabelledSplits:
    """Ink 255 on paper 0, made larger by Pillow's bilinear filter."""
    images, labels = _bundled()
    rows = shuffled_classes(labels, seed)
    parts = (slice(POOL), slice(POOL, POOL + CHOICES), slice(POOL + CHOICES, None))
    whole = labelled(resized(images, size or SIDE), labels, tuple("0123456789"))
    train, val, test = (whole.at(sorted(index for row in rows for index in row[part])) for part in parts)
    return LabelledSplits(train, val, test, f"{CHOICES} of each class, drawn with seed {seed}")


def _bundled() -> tuple[Pixels, Pixels]:
    """Bytes (1797, 1, 8, 8) and labels; the 17 levels 0, …, 16 are spread over 0, …, 255."""
    from sklearn.datasets import load_digits as bundled  # late: importing it takes a second

    found = bundled()
    return np.rint(found.images[:, None] * (255 / 16)).astype(np.uint8), found.target.astype(np.uint8)
