"""The code points that each script of the glyphs is chosen from.

What the fonts lack is skipped. Of two look-alikes the one that comes first in the order of the scripts is kept: a test
character that looks like a training character is left out of the test, not of the training.

Left out on purpose: Braille, hexagrams, tetragrams, dominoes, playing cards and emoticons, whose members
differ by details that 28 pixels do not show; and numerals made of several letters.
"""

Ranges = tuple[tuple[int, int], ...]  # first and last code point of each, both included

RANGES: dict[str, Ranges] = {
    "Latin": (
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
    "Cyrillic": ((0x0400, 0x052F), (0xA640, 0xA69F)),
    "Canadian syllabics": ((0x1400, 0x167F),),
    "Mathematical letters": (
        (0x2100, 0x2125),  # letter-like symbols, without the Greek and Hebrew letters among them
        (0x212A, 0x2134),
        (0x2139, 0x213B),
        (0x2141, 0x214F),
        (0x1D400, 0x1D6A3),  # double-struck, Fraktur and other Latin letters
        (0x1D7CE, 0x1D7FF),
    ),
    "Mathematical operators": ((0x2200, 0x22FF), (0x27C0, 0x27EF), (0x2A00, 0x2AFF)),
    "Arrows": ((0x2190, 0x21FF), (0x2794, 0x27BE), (0x27F0, 0x27FF), (0x2900, 0x297F)),
    "Miscellaneous symbols": ((0x2600, 0x26FF),),
    "Georgian": ((0x10A0, 0x10FF), (0x2D00, 0x2D2F)),
    "Currency": ((0x20A0, 0x20CF),),
    "Geometric shapes": ((0x25A0, 0x25FF),),
    "Dingbats": ((0x2701, 0x2793),),
    "Greek": ((0x0370, 0x03E1), (0x03F0, 0x03FF), (0x1F00, 0x1FFF)),
    "Coptic": ((0x03E2, 0x03EF),),
    "Arabic": ((0x0620, 0x06FF), (0x0750, 0x077F), (0xFB50, 0xFDFF), (0xFE70, 0xFEFC)),
    "Armenian": ((0x0531, 0x058F), (0xFB13, 0xFB17)),
    "Hebrew": ((0x05D0, 0x05F2), (0xFB1D, 0xFB4F)),
    "N'Ko": ((0x07C0, 0x07FF),),
    "Lao": ((0x0E80, 0x0EFF),),
    "Ogham": ((0x1680, 0x169F),),
    "Tifinagh": ((0x2D30, 0x2D7F),),
    "Lisu": ((0xA4D0, 0xA4FF),),
    "Old Italic": ((0x10300, 0x1032F),),
}
