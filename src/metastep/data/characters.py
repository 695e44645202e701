"""glyphs with labels: telling characters apart, a task to train a source network on within a minute."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from torch import Tensor

from metastep.data.errors import problem
from metastep.data.images import resized
from metastep.data.pictures import LabelledSet, LabelledSplits, labelled
from metastep.data.scripts import SCRIPTS
from metastep.data.sets.glyphs import load_glyphs

DEFAULT_SCRIPTS = ("Cyrillic", "Greek")  # some hundred letters, no digit among them: those are left to be learned
TRAIN, CHOICES = 15, 2  # of a character's 20 drawings, which are alike random; 3 are for the test


def load_characters(scripts: Sequence[str] = (), size: int | None = None) -> LabelledSplits:
    """Return the characters of these scripts as classes, split by drawing; ("all",) stands for every script."""
    glyphs = load_glyphs("all")
    chosen = [i for i, group in enumerate(glyphs.groups) if group in _known(tuple(scripts) or DEFAULT_SCRIPTS)]
    names = tuple(glyphs.names[i] for i in chosen)
    images = glyphs.images[chosen]
    ends = pairwise((0, TRAIN, TRAIN + CHOICES, images.shape[1]))
    train, val, test = (_flat(images[:, start:end], names, size) for start, end in ends)
    return LabelledSplits(train, val, test, f"{CHOICES} drawings of each character")


def _known(scripts: tuple[str, ...]) -> set[str]:
    every = {script.name for script in SCRIPTS}
    if scripts == ("all",):
        return every
    for script in scripts:
        if script not in every:
            raise problem(
                f"glyphs:{script}", "is no script of the glyphs", f"Choose from {', '.join(sorted(every))}, or all"
            )
    return set(scripts)


def _flat(rows: Tensor, names: tuple[str, ...], size: int | None) -> LabelledSet:
    """From (classes, drawings, 1, height, width)."""
    labels = np.repeat(np.arange(rows.shape[0]), rows.shape[1])
    return labelled(resized(rows.flatten(0, 1).numpy(), size or rows.shape[-1]), labels, names)
