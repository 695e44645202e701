"""MNIST: 60,000 handwritten digits to train on and 10,000 to test, 28x28 (LeCun, Cortes and Burges)."""

from pathlib import Path
from typing import ClassVar

from metastep.core.registry import register
from metastep.data.cache import Arrays
from metastep.data.errors import problem
from metastep.data.files import read_idx
from metastep.data.images import resized
from metastep.data.official import Half, PictureSplit, arrays_of
from metastep.data.registry import Download

FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


def downloads(folder: str, url: str, checksums: str) -> tuple[Download, ...]:
    """Return the four files, whose md5 are given in their order."""
    return tuple(
        Download(f"{folder}/{name}.gz", f"{url}/{name}.gz", f"md5:{md5}")
        for name, md5 in zip(FILES, checksums.split(), strict=True)
    )


@register("dataset", "mnist")
class MNIST(PictureSplit):
    summary = "10 handwritten digits, 28x28"
    licence = "CC BY-SA 3.0 (LeCun, Cortes, Burges)"
    source = "https://ossci-datasets.s3.amazonaws.com/mnist, its four idx files"
    what = "MNIST (a folder mnist with train-images-idx3-ubyte.gz and three others, packed or not)"
    folders: ClassVar[tuple[str, ...]] = ("mnist", "MNIST/raw", "MNIST")
    parts = tuple((f"{name}.gz", name) for name in FILES)  # packed or not
    downloads = downloads(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873 d53e105ee54ea40749a09fcbcd1e9432 "
        "9fb629c4189551a2d022fa330f9573f3 ec29112dd5afa0611ce80d1b7f02629c",
    )
    kinds: ClassVar[tuple[str, ...]] = tuple("0123456789")
    side, channels = 28, 1
    counts = (55_000, 5_000, 10_000)

    def read(self, files: tuple[Path, ...], size: int) -> Arrays:
        train, test = (_half(files[i], files[i + 1], size) for i in (0, 2))
        return arrays_of(train, test, self.kinds)


def _half(images: Path, labels: Path, size: int) -> Half:
    pixels, numbers = read_idx(images, 3), read_idx(labels, 1)
    if len(pixels) != len(numbers) or numbers.max(initial=0) > 9:
        raise problem(labels, "has other labels than the pictures next to it", "Get it again")
    return resized(pixels[:, None], size), numbers
