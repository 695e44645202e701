"""The scripts that glyphs are taken from, and which split each belongs to.

A script lies in exactly one split, so characters seen in testing come from scripts never seen in training.
The order matters: of two look-alikes the one that comes first here is kept, so a test character that looks
like a training character is left out of the test, not of the training. What the fonts lack is skipped.

Left out on purpose: Braille, hexagrams, tetragrams, dominoes, playing cards and emoticons, whose members
differ by details that 28 pixels do not show; and numerals made of several letters.
"""

from typing import NamedTuple

from metastep.data.splits import Part


class Script(NamedTuple):
    """A script: a name, its part of the data, and its inclusive ranges of code points."""

    name: str
    part: Part
    ranges: tuple[tuple[int, int], ...]


SCRIPTS = (
    Script(
        "Latin",
        "train",
        (
            (0x0030, 0x0039),  # digits
            (0x0041, 0x005A),
            (0x0061, 0x007A),
            (0x00C0, 0x02AF),  # Latin-1, Extended A and B, phonetic letters
            (0x1D00, 0x1D25),  # phonetic extensions, without the Greek and Cyrillic letters among them
            (0x1D6B, 0x1D77),
            (0x1D79, 0x1D9A),
            (0x1E00, 0x1EFF),
            (0x2C60, 0x2C7F),
            (0xA720, 0xA7FF),
        ),
    ),
    Script("Cyrillic", "train", ((0x0400, 0x052F), (0xA640, 0xA69F))),
    Script("Canadian syllabics", "train", ((0x1400, 0x167F),)),
    Script(
        "Mathematical letters",
        "train",
        (
            (0x2100, 0x2125),  # letter-like symbols, without the Greek and Hebrew letters among them
            (0x212A, 0x2134),
            (0x2139, 0x213B),
            (0x2141, 0x214F),
            (0x1D400, 0x1D6A3),  # double-struck, Fraktur and other Latin letters
            (0x1D7CE, 0x1D7FF),
        ),
    ),
    Script("Mathematical operators", "train", ((0x2200, 0x22FF), (0x27C0, 0x27EF), (0x2A00, 0x2AFF))),
    Script("Arrows", "train", ((0x2190, 0x21FF), (0x2794, 0x27BE), (0x27F0, 0x27FF), (0x2900, 0x297F))),
    Script("Miscellaneous symbols", "train", ((0x2600, 0x26FF),)),
    Script("Georgian", "val", ((0x10A0, 0x10FF), (0x2D00, 0x2D2F))),
    Script("Currency", "val", ((0x20A0, 0x20CF),)),
    Script("Geometric shapes", "val", ((0x25A0, 0x25FF),)),
    Script("Dingbats", "val", ((0x2701, 0x2793),)),
    Script("Greek", "test", ((0x0370, 0x03E1), (0x03F0, 0x03FF), (0x1F00, 0x1FFF))),
    Script("Coptic", "test", ((0x03E2, 0x03EF),)),
    Script("Arabic", "test", ((0x0620, 0x06FF), (0x0750, 0x077F), (0xFB50, 0xFDFF), (0xFE70, 0xFEFC))),
    Script("Armenian", "test", ((0x0531, 0x058F), (0xFB13, 0xFB17))),
    Script("Hebrew", "test", ((0x05D0, 0x05F2), (0xFB1D, 0xFB4F))),
    Script("N'Ko", "test", ((0x07C0, 0x07FF),)),
    Script("Lao", "test", ((0x0E80, 0x0EFF),)),
    Script("Ogham", "test", ((0x1680, 0x169F),)),
    Script("Tifinagh", "test", ((0x2D30, 0x2D7F),)),
    Script("Lisu", "test", ((0xA4D0, 0xA4FF),)),
    Script("Old Italic", "test", ((0x10300, 0x1032F),)),
)
