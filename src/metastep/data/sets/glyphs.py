"""glyphs: an Omniglot-like data set that comes with metastep.

It has 1,331 characters of 22 scripts, and no two of them look alike. Each has twenty distorted drawings, 28x28 bytes
with ink 255 on paper 0. The splits share no script. The nearest neighbour in pixels is right in about 41 % of the
5-way 1-shot queries of the test scripts.

Beware of rotations as extra classes: in a few scripts (Canadian syllabics, arrows) a character turned by 90 degrees
is another character.
"""

import unicodedata

import numpy as np
import torch

from metastep.data.files import ASSETS, read_pack
from metastep.data.pictures import ImageSet
from metastep.data.scripts import SCRIPTS
from metastep.data.splits import Split, known_split, parts_of

FILE = ASSETS / "glyphs.npz"


def load_glyphs(split: Split = "train") -> ImageSet:
    """Return the characters of one split, in the order of SCRIPTS and of their code points."""
    parts = parts_of(known_split(split))
    glyphs = read_pack(FILE, ("images", "points", "scripts"))
    chosen = np.array([script.part in parts for script in SCRIPTS])[glyphs["scripts"]]
    names = (f"U+{point:04X} {unicodedata.name(chr(point))}" for point in glyphs["points"][chosen])
    groups = (SCRIPTS[index].name for index in glyphs["scripts"][chosen])
    return ImageSet(torch.from_numpy(glyphs["images"][chosen]), tuple(names), tuple(groups))
