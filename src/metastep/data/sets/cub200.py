"""CUB-200-2011: 200 species of birds, 11,788 photos, kept as squares of 256x256 (Wah et al. 2011).

Episodes split the classes as Chen et al. (2019) do: 100 for training, 50 for validation, 50 for testing.
"""

from collections.abc import Sequence
from pathlib import Path

from metastep.core.registry import register
from metastep.data.cache import Arrays
from metastep.data.errors import problem
from metastep.data.images import ToPixels, stretched
from metastep.data.official import PictureSplit, folder_of, lines_of, read_listed
from metastep.data.pictures import PARTS, Part, Split, listed_classes
from metastep.data.registry import RESEARCH

ARCHIVE = "CUB_200_2011.tgz"


@register("dataset", "cub200")
class CUB200(PictureSplit):
    summary = "200 species of birds, 256x256; classes split 100/50/50"
    licence = RESEARCH
    source = f"https://www.vision.caltech.edu/datasets/cub_200_2011, {ARCHIVE}"
    what = f"CUB-200-2011 (a folder CUB_200_2011 with images, images.txt and train_test_split.txt, or {ARCHIVE})"
    folders = ("CUB_200_2011", "cub200/CUB_200_2011", "cub200", "")
    parts = tuple((name, ARCHIVE) for name in ("images", "images.txt", "train_test_split.txt"))
    side = 256
    counts = (4_994, 1_000, 5_794)
    indices = "cub200"

    def split_classes(self, names: Sequence[str], split: Split) -> list[int]:
        lists: dict[Part, list[str]] = {part: [] for part in PARTS}
        for i, name in enumerate(names):
            lists["train" if i % 2 == 0 else "val" if i % 4 == 1 else "test"].append(name)
        return listed_classes(lists, names, split)

    def read(self, files: tuple[Path, ...], size: int) -> Arrays:
        return self.read_official(files, size, stretched)

    def read_official(self, files: tuple[Path, ...], size: int, to_pixels: ToPixels) -> Arrays:
        """images.txt has lines of number and path, train_test_split.txt of number and 1 for training"""
        lists = lines_of(files[1], "images.txt"), lines_of(files[2], "train_test_split.txt")
        paths, training = (dict(_pair(line, files[1]) for line in lines) for lines in lists)
        if paths.keys() != training.keys():
            reason = "images.txt and train_test_split.txt do not fit together"
            raise problem(files[1], reason, f"Get it: {self.source}")
        train, test = ([paths[i] for i in paths if training[i] == flag] for flag in ("1", "0"))
        return read_listed(files[0], train, test, folder_of, size, self.progress, to_pixels)


def _pair(line: str, path: Path) -> tuple[str, str]:
    number, _, text = line.partition(" ")
    if not text:
        raise problem(path, f"has a line {line!r} without a second word: it is cut short", "Get it again")
    return number, text
