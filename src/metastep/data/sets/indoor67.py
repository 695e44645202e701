"""MIT Indoor-67: 67 kinds of rooms, kept as squares of 256x256 (Quattoni and Torralba 2009)."""

from pathlib import Path

from metastep.core.registry import register
from metastep.data.cache import Arrays
from metastep.data.official import PictureSplit, folder_of, lines_of, read_listed

LISTS = ("TrainImages.txt", "TestImages.txt")


@register("dataset", "indoor67")
class Indoor67(PictureSplit):
    summary = "67 kinds of rooms, 256x256"
    licence = "research; pictures by their owners"
    source = f"https://web.mit.edu/torralba/www/indoor.html, indoorCVPR_09.tar with {' and '.join(LISTS)}"
    what = f"MIT Indoor-67 (a folder indoor67 with Images or indoorCVPR_09.tar, {' and '.join(LISTS)})"
    folders = ("indoor67", "indoorCVPR_09", "indoor67/indoorCVPR_09", "")
    parts = (("Images", "indoorCVPR_09.tar"), *((name,) for name in LISTS))
    side = 256
    counts = (4_360, 1_000, 1_340)
    balanced = False  # 1,000 is no multiple of 67

    def read(self, files: tuple[Path, ...], size: int) -> Arrays:
        """Lines of class and file; most of the 15,620 pictures are in no list"""
        train, test = (lines_of(path, name) for path, name in zip(files[1:], LISTS, strict=True))
        return read_listed(files[0], train, test, folder_of, size, self.progress)
