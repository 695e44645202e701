"""Waves: a data set that is drawn when it is asked for."""

from typing import Any

import numpy as np

import metastep as ms

CLASSES, EACH, SIDE = 60, 20, 16


@ms.register("dataset", "waves")
class Waves(ms.data.ClassSplit):
    summary = f"{CLASSES} waves of their own direction and length, {EACH} noisy pictures each, {SIDE}x{SIDE}"
    licence = "free"
    source = "drawn by metastep-example"
    embedded = True
    side, channels = SIDE, 1

    def read_classes(self, split: Any) -> ms.data.Pictures:
        classes = ms.data.classes_by_share(CLASSES, split)
        pictures = np.concatenate([self.draw(label) for label in classes])
        return ms.data.Pictures.of(pictures, np.arange(len(classes)).repeat(EACH), [f"wave {i}" for i in classes])

    def draw(self, label: int) -> Any:
        """Return bytes (pictures, channels, side, side) of one class."""
        random = np.random.default_rng(label)
        direction, place = random.normal(size=2), np.mgrid[:SIDE, :SIDE] / 4
        wave = np.sin(np.tensordot(direction, place, 1) + random.uniform(0, 6))
        return np.uint8(127.5 + 90 * wave + random.normal(0, 9, (EACH, 1, SIDE, SIDE)))
