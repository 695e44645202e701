"""CIFAR-100: a hundred classes of 500 pictures to train on and 100 to test, 32x32 (Krizhevsky 2009).

Its binary release, never the Python one: that is made of pickles, and opening a pickle runs whatever is in it.
"""

from pathlib import Path

import numpy as np

from metastep.core.registry import register
from metastep.data.cache import Arrays
from metastep.data.errors import problem
from metastep.data.files import read_named
from metastep.data.images import resized
from metastep.data.official import Half, PictureSplit, arrays_of, read_labelled_pack
from metastep.data.registry import Download

SIDE = 32
RECORD = 2 + 3 * SIDE**2  # bytes: the coarse label, the fine label, three planes
PACK = "cifar100_avif93.npz"
ARCHIVE = "cifar-100-binary.tar.gz"
URL = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"


@register("dataset", "cifar100")
class CIFAR100(PictureSplit):
    summary = "100 classes of photos, 32x32"
    licence = "none stated; cite Krizhevsky 2009"
    source = f"https://www.cs.toronto.edu/~kriz/cifar.html, {ARCHIVE}"
    what = (
        f"CIFAR-100 in its binary release (a folder cifar-100-binary with train.bin and test.bin, or {PACK}; the "
        "Python release is made of pickles, which run whatever is in them when opened, so it is not read)"
    )
    places = ("cifar-100-binary", "cifar100/cifar-100-binary", ARCHIVE, f"cifar100/{ARCHIVE}", PACK, f"cifar100/{PACK}")
    downloads = (Download(f"cifar100/{ARCHIVE}", URL, "md5:03b5dce01913d631647c71ecec9e9cb8"),)
    side = SIDE
    counts = (45_000, 5_000, 10_000)
    indices = "cifar100"

    def read(self, files: tuple[Path, ...], size: int) -> Arrays:
        """The pack is ordered by class, so that no published index applies to it"""
        (path,) = files
        if path.suffix != ".npz":
            found = read_named(path, ("train.bin", "test.bin", "fine_label_names.txt"))
            train, test = (_part(path, found[f"{part}.bin"], size) for part in ("train", "test"))
            return arrays_of(train, test, found["fine_label_names.txt"].decode().split())
        arrays = read_labelled_pack(path, SIDE, self.progress, in_order=False)
        return arrays | {key: resized(arrays[key], size) for key in ("train_images", "test_images")}


def _part(path: Path, data: bytes, size: int) -> Half:
    if len(data) % RECORD:
        reason = f"has {len(data):,} bytes, not whole pictures of {RECORD:,}: it is cut short"
        raise problem(path, reason, f"Get it again: {CIFAR100.source}")
    records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
    return resized(records[:, 2:].reshape(-1, 3, SIDE, SIDE), size), records[:, 1]
