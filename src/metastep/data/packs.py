"""Packs of sheets: pictures of one size side by side in a few large image files, inside one .npz."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from metastep.data.errors import problem
from metastep.data.files import read_pack
from metastep.data.images import open_picture
from metastep.data.pictures import Pixels
from metastep.data.progress import Progress, silent


def read_sheets(path: Path, size: int, progress: Progress = silent) -> Pixels:
    """All pictures of a pack in their order, (pictures, 3, size, size)."""
    pack = read_pack(path, ("blob", "offset", "count", "hw"))
    if len(pack["offset"]) != len(pack["count"]) + 1 or tuple(pack["hw"]) != (size, size):
        raise problem(path, f"does not hold pictures of {size}x{size}", "Copy it again")
    return np.concatenate(list(_sheets(path, pack["blob"], pack["offset"], pack["count"], size, progress)))


def _sheets(path: Path, blob: Pixels, offset: Pixels, count: Pixels, size: int, progress: Progress) -> Iterator[Pixels]:
    for i, pictures in enumerate(count):
        yield cut_sheet(blob[offset[i] : offset[i + 1]].tobytes(), f"{path}, sheet {i}", int(pictures), size)
        progress(i + 1, len(count))


def cut_sheet(sheet: bytes, name: str, count: int, size: int) -> Pixels:
    """The first `count` pictures of a sheet that shows them row by row, (count, 3, size, size)."""
    pixels = np.asarray(open_picture(sheet, name).convert("RGB"))
    rows, columns = pixels.shape[0] // size, pixels.shape[1] // size
    if count > rows * columns:
        raise problem(name, f"has room for {rows * columns} pictures, not {count}", "Copy the pack again")
    grid = pixels[: rows * size, : columns * size].reshape(rows, size, columns, size, 3)
    return grid.transpose(0, 2, 4, 1, 3).reshape(-1, 3, size, size)[:count]
