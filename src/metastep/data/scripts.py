"""The scripts of the glyphs, and which split each belongs to.

A script lies in exactly one split, so the characters of a test come from scripts that training never saw. The asset
counts scripts in this order.
"""

from typing import NamedTuple

from metastep.data.splits import Part


class Script(NamedTuple):
    """A script."""

    name: str
    part: Part


SCRIPTS = (
    Script("Latin", "train"),
    Script("Cyrillic", "train"),
    Script("Canadian syllabics", "train"),
    Script("Mathematical letters", "train"),
    Script("Mathematical operators", "train"),
    Script("Arrows", "train"),
    Script("Miscellaneous symbols", "train"),
    Script("Georgian", "val"),
    Script("Currency", "val"),
    Script("Geometric shapes", "val"),
    Script("Dingbats", "val"),
    Script("Greek", "test"),
    Script("Coptic", "test"),
    Script("Arabic", "test"),
    Script("Armenian", "test"),
    Script("Hebrew", "test"),
    Script("N'Ko", "test"),
    Script("Lao", "test"),
    Script("Ogham", "test"),
    Script("Tifinagh", "test"),
    Script("Lisu", "test"),
    Script("Old Italic", "test"),
)
