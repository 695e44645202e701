"""Stanford-40: 40 human actions, kept as squares of 256x256 (Yao et al. 2011)."""

from pathlib import Path

from metastep.core.registry import register
from metastep.data.cache import Arrays
from metastep.data.official import PictureSplit, lines_of, read_listed

PICTURES, LISTS = "Stanford40_JPEGImages.zip", "Stanford40_ImageSplits.zip"


@register("dataset", "stanford40")
class Stanford40(PictureSplit):
    summary = "40 human actions, 256x256"
    licence = "research; pictures by their owners"
    source = f"http://vision.stanford.edu/Datasets/40actions.html, {PICTURES} and {LISTS}"
    what = "Stanford-40 (a folder stanford40 with JPEGImages and ImageSplits, or their archives)"
    folders = ("stanford40", "Stanford40", "")
    parts = (("JPEGImages", PICTURES), *((f"ImageSplits/{part}.txt", LISTS) for part in ("train", "test")))
    side = 256
    counts = (3_600, 400, 5_532)

    def read(self, files: tuple[Path, ...], size: int) -> Arrays:
        """Lines of a file, action_NNN.jpg"""
        train, test = (lines_of(path, name) for path, name in zip(files[1:], ("train.txt", "test.txt"), strict=True))
        return read_listed(files[0], train, test, lambda name: name.rpartition("_")[0], size, self.progress)
