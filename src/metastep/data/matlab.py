"""Texts in the cell arrays of MATLAB 5 files: just enough to read lists of file names."""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from metastep.data.errors import problem

HEADER = 128  # bytes
MATRIX, COMPRESSED = 14, 15  # types of elements
CHAR = 4  # a class of matrices
CODECS = {1: "latin-1", 2: "latin-1", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le", 18: "utf-32-le"}  # of characters
Element = tuple[int, bytes]  # type and content


def read_cell_texts(data: bytes, name: str, path: str | Path) -> list[str]:
    """The texts of the variable `name`, a cell array."""
    if data[126:128] != b"IM":  # written by a machine with the usual order of bytes
        raise problem(path, "is no MATLAB 5 file", "Get it again")
    try:
        for kind, content in _elements(data[HEADER:]):
            if kind == MATRIX and (parts := list(_elements(content)))[2][1].decode("latin-1") == name:
                return [_text(cell) for _, cell in parts[3:]]
    except (struct.error, zlib.error, IndexError, KeyError, UnicodeError) as error:
        raise problem(path, f"is damaged or cut short ({error})", "Get it again") from error
    raise problem(path, f"has no variable {name}", "Get it again")


def _elements(data: bytes) -> Iterator[Element]:
    at = 0
    while at < len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if kind >> 16:  # a small one: its size in the upper half, its content instead of the size
            yield kind & 0xFFFF, data[at + 4 : at + 4 + (kind >> 16)]
            at += 8
            continue
        content = data[at + 8 : at + 8 + size]
        if len(content) < size:
            raise struct.error(f"an element of {size:,} bytes ends after {len(content):,}")
        if kind == COMPRESSED:
            yield from _elements(zlib.decompress(content))
            at += 8 + size
        else:
            yield kind, content
            at += 8 + size + -size % 8  # filled up to eights


def _text(cell: bytes) -> str:
    """A matrix is its flags, sizes and name, then its content."""
    (_, flags), _, _, (kind, content) = _elements(cell)
    if flags[0] != CHAR:
        raise KeyError("a cell that is no text")
    return content.decode(CODECS[kind])
