"""CIFAR-100: a hundred classes of 500 pictures to train on and 100 to test, 32x32 (Krizhevsky 2009).

Its binary release, never the Python one: that is made of pickles, and opening a pickle runs whatever is in it.
"""

from pathlib import Path

import numpy as np

from metastep.data.archives import read_named
from metastep.data.cache import Arrays
from metastep.data.errors import problem
from metastep.data.files import first_existing
from metastep.data.images import resized
from metastep.data.official import Official, Part, arrays_of, read_labelled_pack
from metastep.data.progress import Progress

SIDE = 32
RECORD = 2 + 3 * SIDE**2  # bytes: the coarse label, the fine label, three planes
PACK = "cifar100_avif93.npz"
BINARY = (
    "cifar-100-binary",
    "cifar100/cifar-100-binary",
    "cifar-100-binary.tar.gz",
    "cifar100/cifar-100-binary.tar.gz",
)
SOURCE = "https://www.cs.toronto.edu/~kriz/cifar.html, cifar-100-binary.tar.gz"


def find_cifar100(root: Path) -> tuple[Path, ...]:
    """The official folder or archive, else the pack."""
    return first_existing(root, (*BINARY, PACK, f"cifar100/{PACK}"))


def read_cifar100(source: tuple[Path, ...], size: int, progress: Progress) -> Arrays:
    """The pack is ordered by class, so that no published index applies to it."""
    (path,) = source
    if path.suffix != ".npz":
        files = read_named(path, ("train.bin", "test.bin", "fine_label_names.txt"))
        train, test = (_part(path, files[f"{part}.bin"], size) for part in ("train", "test"))
        return arrays_of(train, test, files["fine_label_names.txt"].decode().split())
    arrays = read_labelled_pack(path, progress, in_order=False)
    return arrays | {key: resized(arrays[key], size) for key in ("train_images", "test_images")}


def _part(path: Path, data: bytes, size: int) -> Part:
    if len(data) % RECORD:
        reason = f"has {len(data):,} bytes, not whole pictures of {RECORD:,}: it is cut short"
        raise problem(path, reason, f"Get it again: {SOURCE}")
    records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
    return resized(records[:, 2:].reshape(-1, 3, SIDE, SIDE), size), records[:, 1]


CIFAR100 = Official(
    name="cifar100",
    what=f"CIFAR-100 in its binary release (a folder cifar-100-binary with train.bin and test.bin, or {PACK}; the "
    "Python release is made of pickles, which run whatever is in them when opened, so it is not read)",
    source=SOURCE,
    side=SIDE,
    sizes=(45_000, 5_000, 10_000),
    find=find_cifar100,
    read=read_cifar100,
    indices="cifar100",
)
