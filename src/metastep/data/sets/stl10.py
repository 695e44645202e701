"""STL-10: ten classes, 5,000 labelled pictures to train on and 8,000 to test, 96x96 (Coates, Ng and Lee 2011)."""

from pathlib import Path

import numpy as np

from metastep.data.archives import read_named
from metastep.data.cache import Arrays
from metastep.data.errors import problem
from metastep.data.files import first_existing
from metastep.data.images import resized
from metastep.data.official import PACKED_SIDE, Official, Part, arrays_of, read_labelled_pack
from metastep.data.pictures import Pixels
from metastep.data.progress import Progress

SIDE = 96
PACK = "stl10_32_lossless.npz"
BINARY = ("stl10_binary", "stl10/stl10_binary", "stl10_binary.tar.gz", "stl10/stl10_binary.tar.gz")
SOURCE = "https://cs.stanford.edu/~acoates/stl10, stl10_binary.tar.gz"


def find_stl10(root: Path) -> tuple[Path, ...]:
    """The official folder or archive, from which every size can be had, else the pack."""
    return first_existing(root, (*BINARY, PACK, f"stl10/{PACK}"))


def read_stl10(source: tuple[Path, ...], size: int, progress: Progress) -> Arrays:
    """Both parts in their official order."""
    (path,) = source
    if path.suffix != ".npz":
        files = read_named(path, ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "class_names.txt"))
        train, test = (_part(path, files[f"{part}_X.bin"], files[f"{part}_y.bin"], size) for part in ("train", "test"))
        return arrays_of(train, test, files["class_names.txt"].decode().split())
    if size != PACKED_SIDE:
        reason = f"holds pictures of {PACKED_SIDE}x{PACKED_SIDE}, not of {size}x{size}"
        raise problem(path, reason, f"Get the official ones: {SOURCE}")
    return read_labelled_pack(path, progress, in_order=True)


def _part(path: Path, pixels: bytes, labels: bytes, size: int) -> Part:
    if len(pixels) != len(labels) * 3 * SIDE**2:
        reason = f"has {len(pixels):,} bytes of pictures for {len(labels):,} labels: it is cut short"
        raise problem(path, reason, f"Get it again: {SOURCE}")
    return resized(_upright(pixels), size), np.frombuffer(labels, np.uint8) - 1  # labels count from 1


def _upright(pixels: bytes) -> Pixels:
    """The planes of a picture are stored column by column."""
    return np.frombuffer(pixels, np.uint8).reshape(-1, 3, SIDE, SIDE).transpose(0, 1, 3, 2)


STL10 = Official(
    name="stl10",
    what=f"STL-10 (a folder stl10_binary with train_X.bin and others, or {PACK})",
    source=SOURCE,
    side=32,
    sizes=(4_500, 500, 8_000),
    find=find_stl10,
    read=read_stl10,
    indices="stl10",
)
