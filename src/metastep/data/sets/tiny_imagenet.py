"""TinyImageNet: 200 ImageNet classes of 500 pictures, 64x64, made 32x32: what source networks are trained on."""

import re
from pathlib import Path

from metastep.data.archives import member_names, read_named
from metastep.data.cache import Arrays
from metastep.data.errors import problem
from metastep.data.files import first_existing
from metastep.data.listed import read_listed
from metastep.data.official import Official
from metastep.data.progress import Progress

NAME = "tiny-imagenet-200"
PLACES = (NAME, f"tiny_imagenet/{NAME}", f"{NAME}.zip", f"tiny_imagenet/{NAME}.zip")
SOURCE = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
ANNOTATIONS = "val/val_annotations.txt"  # lines of: file, class, four numbers
_TRAINING = re.compile(r"(?:^|/)train/([^/]+/images/[^/]+)$")


def find_tiny_imagenet(root: Path) -> tuple[Path, ...]:
    """The official folder or archive."""
    return first_existing(root, PLACES)


def read_tiny_imagenet(source: tuple[Path, ...], size: int, progress: Progress) -> Arrays:
    """The official test part has no labels, so the official validation part is the test; classes sorted by wnid."""
    (path,) = source
    train = [found.group(1) for name in member_names(path) if (found := _TRAINING.search(name))]
    lines = [line.split("\t") for line in read_named(path, (ANNOTATIONS,))[ANNOTATIONS].decode().splitlines() if line]
    if not train or not all(len(line) >= 2 for line in lines):
        raise problem(path, f"has no train/<class>/images, or {ANNOTATIONS} is damaged", f"Get it again: {SOURCE}")
    classes = {f"val/images/{line[0]}": line[1] for line in lines}
    return read_listed(
        path, train, list(classes), lambda name: classes.get(name) or name.partition("/")[0], size, progress
    )


TINY_IMAGENET = Official(
    name="tiny_imagenet",
    what="TinyImageNet (a folder tiny-imagenet-200 with train/<class>/images and val/val_annotations.txt)",
    source=SOURCE,
    side=32,
    sizes=(90_000, 10_000, 10_000),
    find=find_tiny_imagenet,
    read=read_tiny_imagenet,
)
