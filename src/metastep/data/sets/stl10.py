"""STL-10: ten classes, 5,000 labelled pictures to train on and 8,000 to test, 96x96 (Coates, Ng and Lee 2011)."""

from pathlib import Path

import numpy as np

from metastep.core.registry import register
from metastep.data.cache import Arrays
from metastep.data.errors import problem
from metastep.data.files import read_named
from metastep.data.images import resized
from metastep.data.official import Half, PictureSplit, arrays_of, read_labelled_pack

OFFICIAL_SIDE, PACKED_SIDE = 96, 32
PACK, ARCHIVE = "stl10_32_lossless.npz", "stl10_binary.tar.gz"


@register("dataset", "stl10")
class STL10(PictureSplit):
    summary = "10 classes of photos, 96x96 made 32x32"
    licence = "research; pictures from ImageNet"
    source = f"https://cs.stanford.edu/~acoates/stl10, {ARCHIVE}"
    what = f"STL-10 (a folder stl10_binary with train_X.bin and others, or {PACK})"
    # The official ones first: every size can be had from them.
    places = ("stl10_binary", "stl10/stl10_binary", ARCHIVE, f"stl10/{ARCHIVE}", PACK, f"stl10/{PACK}")
    side = 32
    counts = (4_500, 500, 8_000)
    indices = "stl10"

    def read(self, files: tuple[Path, ...], size: int) -> Arrays:
        (path,) = files
        if path.suffix != ".npz":
            found = read_named(path, ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "class_names.txt"))
            train, test = (_part(path, found[f"{p}_X.bin"], found[f"{p}_y.bin"], size) for p in ("train", "test"))
            return arrays_of(train, test, found["class_names.txt"].decode().split())
        if size != PACKED_SIDE:
            reason = f"holds pictures of {PACKED_SIDE}x{PACKED_SIDE}, not of {size}x{size}"
            raise problem(path, reason, f"Get the official ones: {self.source}")
        return read_labelled_pack(path, PACKED_SIDE, self.progress, in_order=True)


def _part(path: Path, pixels: bytes, labels: bytes, size: int) -> Half:
    if len(pixels) != len(labels) * 3 * OFFICIAL_SIDE**2:
        reason = f"has {len(pixels):,} bytes of pictures for {len(labels):,} labels: it is cut short"
        raise problem(path, reason, f"Get it again: {STL10.source}")
    planes = np.frombuffer(pixels, np.uint8).reshape(-1, 3, OFFICIAL_SIDE, OFFICIAL_SIDE)
    upright = planes.transpose(0, 1, 3, 2)  # they are stored column by column
    return resized(upright, size), np.frombuffer(labels, np.uint8) - 1  # labels count from 1
