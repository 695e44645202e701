"""TinyImageNet: 200 ImageNet classes of 500 pictures, 64x64, made 32x32: what source networks are trained on."""

import re
from pathlib import Path

from metastep.core.registry import register
from metastep.data.cache import Arrays
from metastep.data.errors import problem
from metastep.data.files import member_names, read_named
from metastep.data.official import PictureSplit, read_listed
from metastep.data.registry import RESEARCH

NAME = "tiny-imagenet-200"
ANNOTATIONS = "val/val_annotations.txt"  # lines of: file, class, four numbers
_TRAINING = re.compile(r"(?:^|/)train/([^/]+/images/[^/]+)$")


@register("dataset", "tiny_imagenet")
class TinyImageNet(PictureSplit):
    summary = "200 ImageNet classes, 64x64 made 32x32; to train source networks on"
    licence = f"ImageNet: {RESEARCH}"
    source = f"http://cs231n.stanford.edu/{NAME}.zip"
    what = f"TinyImageNet (a folder {NAME} with train/<class>/images and {ANNOTATIONS})"
    places = (NAME, f"tiny_imagenet/{NAME}", f"{NAME}.zip", f"tiny_imagenet/{NAME}.zip")
    side = 32
    counts = (90_000, 10_000, 10_000)

    def read(self, files: tuple[Path, ...], size: int) -> Arrays:
        """The official test part has no labels, so the official validation part is the test; classes sorted by wnid"""
        (path,) = files
        train = [found.group(1) for name in member_names(path) if (found := _TRAINING.search(name))]
        text = read_named(path, (ANNOTATIONS,))[ANNOTATIONS].decode()
        lines = [line.split("\t") for line in text.splitlines() if line]
        if not train or not all(len(line) >= 2 for line in lines):
            reason = f"has no train/<class>/images, or {ANNOTATIONS} is damaged"
            raise problem(path, reason, f"Get it again: {self.source}")
        tested = {f"val/images/{line[0]}": line[1] for line in lines}

        def class_of(name: str) -> str:
            return tested.get(name) or name.partition("/")[0]

        return read_listed(path, train, list(tested), class_of, size, self.progress)
