"""A user's own pictures: one sub-folder per class, files of any size and kind."""

from collections.abc import Container, Sequence
from pathlib import Path

import torch
from PIL.Image import Resampling

from metastep.data.errors import DataError, problem
from metastep.data.files import entries
from metastep.data.images import read_picture
from metastep.data.pictures import ImageSet, Pixels, stack_classes
from metastep.data.progress import Progress, silent
from metastep.data.splits import Split, sizes_from_fractions, split_classes
from metastep.errors import how_many

_ADVICE = "`metastep data check` lists everything that is wrong with a folder"
FRACTIONS = (0.64, 0.16, 0.20)  # of the classes for training, validation and testing


def load_folder(
    path: Path,
    split: Split = "all",
    *,
    size: int = 84,
    channels: int = 3,
    progress: Progress = silent,
) -> ImageSet:
    """The classes of one split, with all their pictures, stretched to squares.

    Where classes differ in number, `counts` says how many each has. The first file that cannot be used stops the
    loading: a picture left out in silence would change the result.
    """
    classes = class_files(path)
    names = classes_of(list(classes), split)
    if not names:
        reason = f"has {how_many(len(classes), 'class', 'classes')}, which leaves none for {split!r}"
        raise problem(path, reason, "Add classes, or use the split 'all'")
    files = [classes[name] for name in names]
    total, done = sum(map(len, files)), 0
    rows = []
    for row in files:
        rows.append([read_in_class(file, size, channels) for file in row])
        progress(done := done + len(row), total)
    images, counts = stack_classes(rows)
    return ImageSet(torch.from_numpy(images), names, names, counts)


def classes_of(names: Sequence[str], split: Split) -> tuple[str, ...]:
    """Which of all the classes of a folder are a split's."""
    return tuple(names[i] for i in split_classes(sizes_from_fractions(len(names), FRACTIONS), split))


def class_files(path: Path, without: Container[Path] = ()) -> dict[str, list[Path]]:
    """Class name -> its files, both sorted; anything that is not in its place is refused.

    without: what is taken for removed.
    """
    require_folder(path)
    classes = {}
    for folder in _entries(path, without):
        if not folder.is_dir():
            raise problem(folder, "lies outside the class folders", f"Move or remove it; {_ADVICE}")
        classes[folder.name] = _entries(folder, without)
        if not classes[folder.name]:
            raise problem(folder, "is a class without pictures", f"Fill or remove it; {_ADVICE}")
        for file in classes[folder.name]:
            if not file.is_file():
                raise problem(file, "is no file, but lies in a class folder", f"Move or remove it; {_ADVICE}")
    return classes


def require_folder(path: Path) -> None:
    if not path.is_dir():
        raise problem(path, "is not a folder", "Give a folder with one sub-folder of pictures per class")


def read_in_class(file: Path, size: int, channels: int, resample: Resampling = Resampling.LANCZOS) -> Pixels:
    """As `read_picture`; where one file is damaged there may be more, and an error says how to find them all."""
    try:
        return read_picture(file, size, channels, resample)
    except DataError as error:
        raise DataError(f"{str(error).rstrip('.')}; {_ADVICE}.") from error


def _entries(folder: Path, without: Container[Path]) -> list[Path]:
    return [entry for entry in entries(folder) if entry not in without]
