"""STL-10: ten classes, 5,000 labelled pictures to train on and 8,000 to test, 96x96 (Coates, Ng and Lee 2011)."""

from pathlib import Path

import numpy as np

from metastep.data.archives import read_named
from metastep.data.cache import Arrays
from metastep.data.errors import problem
from metastep.data.files import first_existing, read_pack
from metastep.data.images import Pixels
from metastep.data.official import Official
from metastep.data.pictures import resized
from metastep.data.progress import Progress
from metastep.data.sheets import read_sheets

SIDE, PACKED_SIDE = 96, 32
PACK = "stl10_32_lossless.npz"
BINARY = ("stl10_binary", "stl10/stl10_binary", "stl10_binary.tar.gz", "stl10/stl10_binary.tar.gz")
SOURCE = "https://cs.stanford.edu/~acoates/stl10, stl10_binary.tar.gz"


def find_stl10(root: Path) -> tuple[Path, ...]:
    """The official folder or archive (all sizes can be had from it), else the pack."""
    return first_existing(root, (*BINARY, PACK, f"stl10/{PACK}"))


def read_stl10(source: tuple[Path, ...], size: int, progress: Progress) -> Arrays:
    """Both parts in their official order."""
    (path,) = source
    return _from_pack(path, size, progress) if path.suffix == ".npz" else _from_binary(path, size)


def _from_pack(path: Path, size: int, progress: Progress) -> Arrays:
    if size != PACKED_SIDE:
        reason = f"holds pictures of {PACKED_SIDE}x{PACKED_SIDE}, not of {size}x{size}"
        raise problem(path, reason, f"Get the official ones: {SOURCE}")
    pack = read_pack(path, ("y_train", "y_test", "classes"))
    images, train = read_sheets(path, size, progress), len(pack["y_train"])
    return {
        "train_images": images[:train],
        "train_labels": pack["y_train"],
        "test_images": images[train:],
        "test_labels": pack["y_test"],
        "names": pack["classes"],
        "in_order": np.array(True),
    }


def _from_binary(path: Path, size: int) -> Arrays:
    wanted = [f"{part}_{kind}.bin" for part in ("train", "test") for kind in "Xy"]
    files = read_named(path, (*wanted, "class_names.txt"))
    return {
        "train_images": resized(_pictures(files["train_X.bin"], path), size),
        "train_labels": np.frombuffer(files["train_y.bin"], np.uint8) - 1,  # they count from 1
        "test_images": resized(_pictures(files["test_X.bin"], path), size),
        "test_labels": np.frombuffer(files["test_y.bin"], np.uint8) - 1,
        "names": np.array(files["class_names.txt"].decode().split()),
        "in_order": np.array(True),
    }


def _pictures(data: bytes, path: Path) -> Pixels:
    """The planes of a picture are stored column by column."""
    if len(data) % (3 * SIDE * SIDE):
        raise problem(path, f"has pictures in {len(data):,} bytes: it is cut short", f"Get it again: {SOURCE}")
    return np.frombuffer(data, np.uint8).reshape(-1, 3, SIDE, SIDE).transpose(0, 1, 3, 2)


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
