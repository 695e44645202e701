"""The data sets of photos, kept as squares of 256x256: birds, rooms, actions and dogs."""

from pathlib import Path

from metastep.data.archives import read_named
from metastep.data.cache import Arrays
from metastep.data.errors import problem
from metastep.data.files import read_bytes
from metastep.data.listed import find_parts, folder_of, read_listed
from metastep.data.matlab import read_cell_texts
from metastep.data.official import Official
from metastep.data.progress import Progress

SIDE = 256
CUB_SOURCE = "https://www.vision.caltech.edu/datasets/cub_200_2011, CUB_200_2011.tgz"
INDOOR_SOURCE = (
    "https://web.mit.edu/torralba/www/indoor.html, indoorCVPR_09.tar with TrainImages.txt and TestImages.txt"
)
ACTION_SOURCE = "http://vision.stanford.edu/Datasets/40actions.html, Stanford40_JPEGImages.zip and _ImageSplits.zip"
DOG_SOURCE = "http://vision.stanford.edu/aditya86/ImageNetDogs, images.tar and lists.tar"


def find_cub200(root: Path) -> tuple[Path, ...]:
    """The pictures and both lists, or the archive for each of them."""
    archive, folders = "CUB_200_2011.tgz", ("CUB_200_2011", "cub200/CUB_200_2011", "cub200", "")
    return find_parts(root, folders, ("images", archive), ("images.txt", archive), ("train_test_split.txt", archive))


def read_cub200(source: tuple[Path, ...], size: int, progress: Progress) -> Arrays:
    """images.txt has lines of number and path, train_test_split.txt of number and 1 for training."""
    lists = _lines(source[1], "images.txt"), _lines(source[2], "train_test_split.txt")
    paths, training = (dict(_pair(line, source[1]) for line in lines) for lines in lists)
    if paths.keys() != training.keys():
        raise problem(source[1], "images.txt and train_test_split.txt do not fit together", f"Get it: {CUB_SOURCE}")
    train, test = ([paths[i] for i in paths if training[i] == flag] for flag in ("1", "0"))
    return read_listed(source[0], train, test, folder_of, size, progress)


def find_indoor67(root: Path) -> tuple[Path, ...]:
    """The folder or archive of the pictures, and both lists."""
    folders = ("indoor67", "indoorCVPR_09", "indoor67/indoorCVPR_09", "")
    return find_parts(root, folders, ("Images", "indoorCVPR_09.tar"), ("TrainImages.txt",), ("TestImages.txt",))


def read_indoor67(source: tuple[Path, ...], size: int, progress: Progress) -> Arrays:
    """Lines of class and file; most of the 15,620 pictures are in no list."""
    train, test = _lines(source[1], "TrainImages.txt"), _lines(source[2], "TestImages.txt")
    return read_listed(source[0], train, test, folder_of, size, progress)


def find_stanford40(root: Path) -> tuple[Path, ...]:
    """The folder or archive of the pictures, and both lists or their archive."""
    pictures, archive = ("JPEGImages", "Stanford40_JPEGImages.zip"), "Stanford40_ImageSplits.zip"
    lists = (("ImageSplits/train.txt", archive), ("ImageSplits/test.txt", archive))
    return find_parts(root, ("stanford40", "Stanford40", ""), pictures, *lists)


def read_stanford40(source: tuple[Path, ...], size: int, progress: Progress) -> Arrays:
    """Lines of a file, action_NNN.jpg."""
    train, test = _lines(source[1], "train.txt"), _lines(source[2], "test.txt")
    return read_listed(source[0], train, test, lambda name: name.rpartition("_")[0], size, progress)


def find_stanford_dogs(root: Path) -> tuple[Path, ...]:
    """The folder or archive of the pictures, and both lists or their archive."""
    pictures, lists = ("Images", "images.tar"), (("train_list.mat", "lists.tar"), ("test_list.mat", "lists.tar"))
    return find_parts(root, ("stanford_dogs", "StanfordDogs", ""), pictures, *lists)


def read_stanford_dogs(source: tuple[Path, ...], size: int, progress: Progress) -> Arrays:
    """Lists of class and file in MATLAB's format."""
    train, test = (
        read_cell_texts(_list(path, name), "file_list", f"{path}, {name}")
        for path, name in zip(source[1:], ("train_list.mat", "test_list.mat"), strict=True)
    )
    return read_listed(source[0], train, test, folder_of, size, progress)


def _list(path: Path, name: str) -> bytes:
    """The list itself, or from an archive the list of that name."""
    return read_bytes(path) if path.name == name else read_named(path, (name,))[name]


def _lines(path: Path, name: str) -> list[str]:
    try:
        return [line.strip() for line in _list(path, name).decode().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise problem(path, f"{name} is no list of files", "Get it again") from error


def _pair(line: str, path: Path) -> tuple[str, str]:
    number, _, text = line.partition(" ")
    if not text:
        raise problem(path, f"has a line {line!r} without a second word: it is cut short", "Get it again")
    return number, text


CUB200 = Official(
    name="cub200",
    what="CUB-200-2011 (a folder CUB_200_2011 with images, images.txt and train_test_split.txt, or CUB_200_2011.tgz)",
    source=CUB_SOURCE,
    side=SIDE,
    sizes=(4_994, 1_000, 5_794),
    find=find_cub200,
    read=read_cub200,
    indices="cub200",
)
INDOOR67 = Official(
    name="indoor67",
    what="MIT Indoor-67 (a folder indoor67 with Images or indoorCVPR_09.tar, TrainImages.txt and TestImages.txt)",
    source=INDOOR_SOURCE,
    side=SIDE,
    sizes=(4_360, 1_000, 1_340),
    find=find_indoor67,
    read=read_indoor67,
    balanced=False,  # 1,000 is no multiple of 67
)
STANFORD40 = Official(
    name="stanford40",
    what="Stanford-40 (a folder stanford40 with JPEGImages and ImageSplits, or their archives)",
    source=ACTION_SOURCE,
    side=SIDE,
    sizes=(3_600, 400, 5_532),
    find=find_stanford40,
    read=read_stanford40,
)
STANFORD_DOGS = Official(
    name="stanford_dogs",
    what="Stanford Dogs (a folder stanford_dogs with Images and train_list.mat and test_list.mat, or their archives)",
    source=DOG_SOURCE,
    side=SIDE,
    sizes=(10_800, 1_200, 8_580),
    find=find_stanford_dogs,
    read=read_stanford_dogs,
    indices="dog",
)
