"""Tiny versions of the official layouts. The colour of a picture says what it is: (class, part, number)."""

import io
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from metastep.core.registry import name_of
from metastep.data.official import PictureSplit
from metastep.data.sets.cifar100 import CIFAR100
from metastep.data.sets.cub200 import CUB200
from metastep.data.sets.indoor67 import Indoor67
from metastep.data.sets.stanford40 import Stanford40
from metastep.data.sets.stanford_dogs import StanfordDogs
from metastep.data.sets.stl10 import STL10
from metastep.data.sets.tiny_imagenet import TinyImageNet
from tests.data.helpers import encoded

CLASSES, TRAIN, TEST = 3, 4, 2  # classes; pictures of each
SIZES = (9, 3, 6)  # of which one of each class is for validation
Colour = tuple[int, int, int]

TRAINING: list[Colour] = [(label, 0, number) for label in range(CLASSES) for number in range(TRAIN)]
TESTING: list[Colour] = [(label, 1, number) for label in range(CLASSES) for number in range(TEST)]
NAMES = ("a_ant", "b_bee", "c_cat")


class Layout(NamedTuple):
    """A data set, how a tiny one is written, and the colours of its training part in the official order."""

    kind: type[PictureSplit]
    write: Callable[[Path], None]
    order: list[Colour]

    @property
    def name(self) -> str:
        """Of the data set that it is a tiny version of"""
        return str(name_of(self.kind.__bases__[0]))


def shuffled(colours: list[Colour]) -> list[Colour]:
    """What readers must put in order, or must leave as it is."""
    return random.Random(5).sample(colours, len(colours))


def planes(colours: list[Colour], side: int) -> NDArray[np.uint8]:
    return np.broadcast_to(np.array(colours, np.uint8)[:, :, None, None], (len(colours), 3, side, side))


def photo(colour: Colour, side: tuple[int, int] = (30, 20)) -> bytes:
    """A PNG, whatever the name of its file: JPEG would change the colour."""
    return encoded(Image.new("RGB", side, colour))


def put(root: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def file_of(colour: Colour) -> str:
    label, part, number = colour
    return f"{NAMES[label]}/x{part}{number}.jpg"


def write_stl10(root: Path) -> None:
    files = {"class_names.txt": b"ant\nbee\ncat\n"}
    for part, colours in (("train", shuffled(TRAINING)), ("test", TESTING)):
        files[f"{part}_X.bin"] = planes(colours, 96).tobytes()
        files[f"{part}_y.bin"] = bytes(label + 1 for label, _, _ in colours)
    put(root / "stl10_binary", files)


def write_cifar100(root: Path) -> None:
    files = {"fine_label_names.txt": b"ant\nbee\ncat\n"}
    for part, colours in (("train", shuffled(TRAINING)), ("test", TESTING)):
        records = zip(colours, planes(colours, 32), strict=True)
        files[f"{part}.bin"] = b"".join(bytes((77, colour[0])) + pixels.tobytes() for colour, pixels in records)
    put(root / "cifar-100-binary", files)


def write_tiny_imagenet(root: Path) -> None:
    files = {"wnids.txt": b"c_cat\na_ant\nb_bee\n", "test/images/test_0.JPEG": photo((9, 9, 9))}
    files |= {
        f"train/{NAMES[label]}/images/{NAMES[label]}_{number}.JPEG": photo((label, part, number), (64, 64))
        for label, part, number in TRAINING
    }
    files |= {f"train/{name}/{name}_boxes.txt": b"" for name in NAMES}
    lines = []
    for i, colour in enumerate(shuffled(TESTING)):
        files[f"val/images/val_{i}.JPEG"] = photo(colour, (64, 64))
        lines.append(f"val_{i}.JPEG\t{NAMES[colour[0]]}\t0\t0\t62\t62\n")
    files["val/val_annotations.txt"] = "".join(lines).encode()
    put(root / "tiny-imagenet-200", files)


def write_cub200(root: Path) -> None:
    colours = shuffled(TRAINING + TESTING)
    files = {f"images/{file_of(colour)}": photo(colour) for colour in colours}
    files["images.txt"] = "".join(f"{i} {file_of(colour)}\n" for i, colour in enumerate(colours, 1)).encode()
    files["train_test_split.txt"] = "".join(f"{i} {1 - colour[1]}\n" for i, colour in enumerate(colours, 1)).encode()
    put(root / "CUB_200_2011", files)


def write_indoor67(root: Path) -> None:
    files = {f"Images/{file_of(colour)}": photo(colour) for colour in TRAINING + TESTING}
    files["Images/a_ant/in_no_list.jpg"] = b"not even a picture"
    for name, colours in (("TrainImages.txt", TRAINING), ("TestImages.txt", TESTING)):
        files[name] = "\r\n".join(map(file_of, shuffled(colours))).encode()
    put(root / "indoor67", files)


def write_stanford40(root: Path) -> None:
    def flat(colour: Colour) -> str:
        return f"{NAMES[colour[0]]}_{colour[1]}{colour[2]:02d}.jpg"

    files = {f"JPEGImages/{flat(colour)}": photo(colour) for colour in TRAINING + TESTING}
    for name, colours in (("train.txt", TRAINING), ("test.txt", TESTING)):
        files[f"ImageSplits/{name}"] = "".join(f"{flat(colour)}\n" for colour in shuffled(colours)).encode()
    put(root / "stanford40", files)


def mat_list(names: list[str], compress: bool = True) -> bytes:
    """As MATLAB keeps it; by another's hand, so that reading is compared with something."""
    scipy = pytest.importorskip("scipy.io")
    cells = np.empty((len(names), 1), object)
    cells[:, 0] = names
    buffer = io.BytesIO()
    contents = {"labels": np.ones((len(names), 1)), "annotation_list": cells[::-1], "file_list": cells}
    scipy.savemat(buffer, contents, do_compression=compress)
    return buffer.getvalue()


def write_stanford_dogs(root: Path) -> None:
    files = {f"Images/{file_of(colour)}": photo(colour) for colour in TRAINING + TESTING}
    for name, colours in (("train_list.mat", TRAINING), ("test_list.mat", TESTING)):
        files[name] = mat_list([file_of(colour) for colour in shuffled(colours)])
    put(root / "stanford_dogs", files)


def tiny(kind: type[PictureSplit], **changes: object) -> type[PictureSplit]:
    """The same data set with fewer pictures"""
    return type("Tiny", (kind,), {"counts": SIZES} | changes)


LAYOUTS = (
    Layout(tiny(STL10), write_stl10, shuffled(TRAINING)),
    Layout(tiny(CIFAR100), write_cifar100, shuffled(TRAINING)),
    Layout(tiny(TinyImageNet), write_tiny_imagenet, TRAINING),
    Layout(tiny(CUB200), write_cub200, TRAINING),
    Layout(tiny(Indoor67), write_indoor67, TRAINING),
    Layout(tiny(Stanford40), write_stanford40, TRAINING),
    Layout(tiny(StanfordDogs), write_stanford_dogs, TRAINING),
)

ARCHIVES = {  # of each data set: its official archives, and the folder or files that each is made of
    "stl10": {"stl10_binary.tar.gz": "stl10_binary"},
    "cifar100": {"cifar-100-binary.tar.gz": "cifar-100-binary"},
    "tiny_imagenet": {"tiny-imagenet-200.zip": "tiny-imagenet-200"},
    "cub200": {"CUB_200_2011.tgz": "CUB_200_2011"},
    "indoor67": {"indoor67/indoorCVPR_09.tar": "indoor67/Images"},
    "stanford40": {
        "stanford40/Stanford40_JPEGImages.zip": "stanford40/JPEGImages",
        "stanford40/Stanford40_ImageSplits.zip": "stanford40/ImageSplits",
    },
    "stanford_dogs": {
        "stanford_dogs/images.tar": "stanford_dogs/Images",
        "stanford_dogs/lists.tar": "stanford_dogs/train_list.mat stanford_dogs/test_list.mat",
    },
}


def pack_up(root: Path, name: str) -> None:
    """Put the folders of a data set into its official archives, and remove them."""
    for archive, sources in ARCHIVES[name].items():
        paths = [root / source for source in sources.split()]
        files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
        _archive(root / archive, {file.relative_to(paths[0].parent).as_posix(): file.read_bytes() for file in files})
        for file in files:
            file.unlink()
        for path in paths:
            path.rename(path.with_name(f".{path.name}")) if path.is_dir() else None


def _archive(path: Path, files: dict[str, bytes]) -> None:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as packed:
            for name, data in files.items():
                packed.writestr(name, data)
        return
    with tarfile.open(path, "w:" if path.suffix == ".tar" else "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
