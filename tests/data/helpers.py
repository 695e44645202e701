"""Small pictures, packs and archives for the tests of the loaders."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def encoded(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The picture as the bytes of a file."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def noise(seed: int, height: int = 84, width: int = 84) -> NDArray[np.uint8]:
    """RGB bytes that differ for every seed."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write_classes(folder: Path, counts: dict[str, int], suffix: str = "png") -> Path:
    """One sub-folder per class, each picture different, sizes different."""
    seed = 0
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = noise(seed := seed + 1, height=8 + i, width=12)
            Image.fromarray(pixels).save(folder / name / f"{i:03d}.{suffix}")
    return folder


def write_zip(path: Path, members: dict[str, bytes]) -> Path:
    """A zip of these members."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path
