"""A user's own labelled pictures: one sub-folder per class, below train/, val/ and test/ or to be split."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL.Image import Resampling

from metastep.data.cache import Arrays, cached
from metastep.data.errors import problem
from metastep.data.files import entries, fingerprint
from metastep.data.folder import class_files
from metastep.data.holdout import complement, shuffled_classes
from metastep.data.images import LabelledSet, LabelledSplits, Pixels, labelled
from metastep.data.pictures import read_picture
from metastep.data.progress import Progress, counted
from metastep.data.splits import sizes_from_fractions
from metastep.errors import how_many

SIDE = 256
FRACTIONS = (0.6, 0.2, 0.2)  # of each class for training, validation and testing
Files = dict[str, list[Path]]


def is_split(path: Path) -> bool:
    """Whether train/ and test/ hold folders of classes, and are not classes themselves."""
    parts = (path / "train", path / "test")
    return all(part.is_dir() and any(entry.is_dir() for entry in entries(part)) for part in parts)


def load_own(path: Path, size: int | None, seed: int, progress: Progress) -> LabelledSplits:
    """By its own sub-folders train/, test/ and, where there is one, val/; else 60 / 20 / 20 % of each class, drawn."""
    side = size or SIDE
    if not is_split(path):
        return _drawn(_read(path, side, progress), seed, path)
    train, test = _read(path / "train", side, progress), _read(path / "test", side, progress)
    _require_same_classes(train, test, path)
    if not (path / "val").is_dir():
        share = FRACTIONS[1] / (FRACTIONS[0] + FRACTIONS[1])
        held = [i for row in shuffled_classes(train.labels.numpy(), seed) for i in row[: round(len(row) * share)]]
        if not held:
            reason = "has too few pictures of each class to hold some out for validation"
            raise problem(path / "train", reason, "Add pictures, or a folder val beside it")
        rule = f"{share:.0%} of each class of train, drawn with seed {seed}"
        return LabelledSplits(train.at(complement(held, len(train.labels))), train.at(sorted(held)), test, rule)
    val = _read(path / "val", side, progress)
    _require_same_classes(train, val, path)
    return LabelledSplits(train, val, test, "the folder val")


def _drawn(whole: LabelledSet, seed: int, path: Path) -> LabelledSplits:
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for name, row in zip(whole.names, shuffled_classes(whole.labels.numpy(), seed), strict=True):
        if len(row) < len(parts):
            reason = f"has {how_many(len(row), 'picture')}, which cannot be split for training, validation and testing"
            raise problem(path / name, reason, "Add pictures, or remove the class")
        train, val, _ = sizes_from_fractions(len(row), FRACTIONS)
        for part, indices in zip(parts, (row[:train], row[train : train + val], row[train + val :]), strict=True):
            part += indices
    train_set, val_set, test_set = (whole.at(sorted(part)) for part in parts)
    return LabelledSplits(train_set, val_set, test_set, f"{FRACTIONS[1]:.0%} of each class, drawn with seed {seed}")


def _read(path: Path, size: int, progress: Progress) -> LabelledSet:
    files = class_files(path)
    if not files:
        raise problem(path, "has no class folders", "Give a folder with one sub-folder of pictures per class")
    if len(files) == 1:
        raise problem(path, "has a single class: there is nothing to tell apart", "Add a folder of another class")
    key = f"{size} {fingerprint(path)}"
    arrays = cached(f"folder-{size}", key, lambda: _decode(files, size, progress))
    labels = np.repeat(np.arange(len(files)), [len(row) for row in files.values()])
    return labelled(arrays["images"], labels, files)


def _decode(files: Files, size: int, progress: Progress) -> Arrays:
    paths = [file for row in files.values() for file in row]
    images = np.empty((len(paths), 3, size, size), np.uint8)
    for i, pixels in enumerate(counted(_pictures(paths, size), len(paths), progress)):
        images[i] = pixels
    return {"images": images}


def _pictures(paths: Iterable[Path], size: int) -> Iterable[Pixels]:
    return (read_picture(path, size, 3, Resampling.BILINEAR) for path in paths)


def _require_same_classes(train: LabelledSet, other: LabelledSet, path: Path) -> None:
    if strange := set(train.names).symmetric_difference(other.names):
        raise problem(path, f"the class {min(strange)} is not in every part", "Give every part the same classes")
