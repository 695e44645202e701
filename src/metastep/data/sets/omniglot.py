"""Omniglot: 1,623 handwritten characters of 50 alphabets, 20 drawings each (Lake et al. 2015)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from metastep.core.registry import register
from metastep.data.cache import Arrays, cached
from metastep.data.errors import Progress, counted, problem, silent
from metastep.data.files import fingerprint, read_members, read_pack
from metastep.data.images import open_picture, require_room
from metastep.data.pictures import Pictures, Pixels, Sizes, Split, split_classes
from metastep.data.registry import ClassSplit, Download
from metastep.errors import how_many

SIDE, DRAWINGS = 105, 20
SIZE = 28  # of the pictures that are learned from
PACKED = -(-(SIDE**2) // 8)  # bytes of one drawing
SPLIT_SIZES: Sizes = (1_100, 100, 423)  # the usual 1,200 / 423, with 100 of the 1,200 set aside for choices
URL = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
PARTS = {  # the official archives and their md5, as other loaders know them
    "images_background": "68d2efa1b9178cc56df9314c21c6e718",
    "images_evaluation": "6b91aef0f799c5bb55b94e3f2daec811",
}
_DRAWING = re.compile(r"(?:^|/)([^/]+)/(character\d+)/\d+_(\d+)\.png$")  # alphabet, character, drawer


class Drawings(NamedTuple):
    """Characters in sorted order of (alphabet, character), whatever order the source has."""

    bits: Pixels  # (characters, 20, 1379): 105x105 packed, 1 where there is ink
    alphabets: tuple[str, ...]
    characters: tuple[str, ...]


@register("dataset", "omniglot")
class Omniglot(ClassSplit):
    """Splits ignore alphabets, as is customary: all characters sorted and shuffled, then 1,100 / 100 / 423."""

    summary = "1,623 handwritten characters of 50 alphabets, 20 drawings each, 28x28"
    licence = "MIT (Brenden Lake)"
    source = (
        "metastep data get omniglot, or https://github.com/brendenlake/omniglot, python/images_background.zip and "
        "images_evaluation.zip"
    )
    what = "Omniglot"
    downloads = tuple(
        Download(f"omniglot/{part}.zip", f"{URL}/{part}.zip", f"md5:{md5}") for part, md5 in PARTS.items()
    )
    folders = ("", "omniglot/", "omniglot-py/", "omniglot/python/", "python/")  # where people keep them
    places = tuple(map("{}omniglot.npz".format, folders))
    parts = tuple((f"{part}.zip", part) for part in PARTS)  # archives first: a folder may be half unpacked
    side, channels = SIZE, 1

    def read_classes(self, split: Split) -> Pictures:
        drawings = read_drawings(self.files(), self.root, self.progress)
        if len(drawings.characters) != sum(SPLIT_SIZES):
            reason = f"holds {len(drawings.characters):,} Omniglot characters instead of {sum(SPLIT_SIZES):,}"
            raise problem(self.root, reason, "Get both official archives again")
        chosen = split_classes(SPLIT_SIZES, split)
        require_room(len(chosen) * DRAWINGS, 1, self.size or SIZE)
        images = shrink(drawings.bits[chosen], self.size or SIZE)
        names = (f"{drawings.alphabets[i]}/{drawings.characters[i]}" for i in chosen)
        labels = np.arange(len(chosen)).repeat(DRAWINGS)
        return Pictures.of(
            images.reshape(-1, 1, *images.shape[2:]), labels, names, [drawings.alphabets[i] for i in chosen]
        )


def read_drawings(paths: tuple[Path, ...], root: Path, progress: Progress = silent) -> Drawings:
    """Return all drawings at their full size, from the pack or from both official parts."""
    if paths[0].suffix == ".npz":
        return _sorted(read_pack(paths[0], ("ink105_packed", "alphabet", "character")), paths[0])
    # Opening 32,460 small files takes long, so they are kept in packed form.
    return _sorted(cached("omniglot", "".join(map(fingerprint, paths)), lambda: _packed(paths, progress)), root)


def shrink(bits: Pixels, size: int) -> Pixels:
    """Packed drawings (..., 1379) as bytes (..., size, size), with ink 255 on 0.

    Most published results took the nearest pixel: Pillow ignores other filters on 1-bit drawings. Bytes, not bits,
    so that "divide by 255" is right for every data set.
    """
    ink = np.unpackbits(bits, axis=-1, count=SIDE**2).reshape(*bits.shape[:-1], SIDE, SIDE)
    nearest = ((np.arange(size) + 0.5) * (SIDE / size)).astype(int)  # under each new pixel's centre, as Pillow picks it
    return 255 * ink.take(nearest, axis=-2).take(nearest, axis=-1)


def _packed(parts: tuple[Path, ...], progress: Progress) -> Arrays:
    """The official parts as the arrays of `omniglot.npz`."""
    drawings: dict[tuple[str, str], dict[int, Pixels]] = {}
    for path, name, data in counted(_members(parts), sum(SPLIT_SIZES) * DRAWINGS, progress):
        alphabet, character, drawer = _DRAWING.findall(name)[0]
        drawings.setdefault((alphabet, character), {})[int(drawer)] = _ink_bits(data, f"{path}/{name}")
    names = sorted(drawings)
    for alphabet, character in names:
        if (count := len(drawings[alphabet, character])) != DRAWINGS:
            reason = f"{alphabet}/{character} has {how_many(count, 'drawing')} instead of {DRAWINGS}"
            raise problem(parts[0].parent, reason, "Get both official archives again")
    bits = [drawings[name][drawer] for name in names for drawer in sorted(drawings[name])]
    return {
        "ink105_packed": np.array(bits, np.uint8).reshape(len(names), DRAWINGS, PACKED),
        "alphabet": np.array([alphabet for alphabet, _ in names], np.str_),
        "character": np.array([character for _, character in names], np.str_),
    }


def _members(parts: tuple[Path, ...]) -> Iterator[tuple[Path, str, bytes]]:
    for part in parts:
        for name, data in read_members(part, keep=lambda name: _DRAWING.search(name) is not None):
            yield part, name, data


def _ink_bits(data: bytes, name: str) -> Pixels:
    picture = open_picture(data, name)
    if picture.size != (SIDE, SIDE):
        raise problem(name, f"is {picture.width}x{picture.height} instead of {SIDE}x{SIDE}", "Get it again")
    return np.packbits(np.asarray(picture.convert("L")) < 128)  # paper is white


def _sorted(pack: Arrays, source: Path) -> Drawings:
    bits, names = pack["ink105_packed"], list(zip(pack["alphabet"], pack["character"], strict=False))
    if bits.shape != (len(names), DRAWINGS, PACKED) or bits.dtype != np.uint8:
        raise problem(source, f"has drawings of the shape {bits.shape}", "Copy it again")
    order = sorted(range(len(names)), key=names.__getitem__)
    alphabets, characters = (tuple(str(names[i][part]) for i in order) for part in (0, 1))
    return Drawings(bits[order], alphabets, characters)
