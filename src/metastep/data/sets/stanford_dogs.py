"""Stanford Dogs: 120 breeds, kept as squares of 256x256 (Khosla et al. 2011)."""

from pathlib import Path

from metastep.core.registry import register
from metastep.data.cache import Arrays
from metastep.data.official import PictureSplit, folder_of, list_file, read_cell_texts, read_listed
from metastep.data.registry import RESEARCH

LISTS = ("train_list.mat", "test_list.mat")


@register("dataset", "stanford_dogs")
class StanfordDogs(PictureSplit):
    summary = "120 breeds of dogs, 256x256"
    licence = f"ImageNet: {RESEARCH}"
    source = "http://vision.stanford.edu/aditya86/ImageNetDogs, images.tar and lists.tar"
    what = f"Stanford Dogs (a folder stanford_dogs with Images and {' and '.join(LISTS)}, or their archives)"
    folders = ("stanford_dogs", "StanfordDogs", "")
    parts = (("Images", "images.tar"), *((name, "lists.tar") for name in LISTS))
    side = 256
    counts = (10_800, 1_200, 8_580)
    indices = "dog"

    def read(self, files: tuple[Path, ...], size: int) -> Arrays:
        """Lists of class and file in MATLAB's format"""
        train, test = (
            read_cell_texts(list_file(path, name), "file_list", f"{path}, {name}")
            for path, name in zip(files[1:], LISTS, strict=True)
        )
        return read_listed(files[0], train, test, folder_of, size, self.progress)
