"""A user's own labelled pictures: one sub-folder per class, below train/, val/ and test/ or to be split."""

from collections.abc import Callable, Container, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Resampling

from metastep.data.cache import Arrays, cached
from metastep.data.errors import DataError, printable, problem
from metastep.data.files import entries, fingerprint
from metastep.data.folder import class_files, read_in_class
from metastep.data.holdout import complement, shuffled_classes
from metastep.data.pictures import LabelledSet, LabelledSplits, Pixels, labelled
from metastep.data.progress import Progress, counted
from metastep.data.splits import PARTS, sizes_from_fractions
from metastep.errors import how_many

SIDE = 256
CHANNELS = 3  # whatever the files have: grey ones stand among photos
FRACTIONS = (0.6, 0.2, 0.2)  # of each class for training, validation and testing
HALVES = ("train", "test")  # a folder that is split has both
Files = dict[str, list[Path]]
Reader = Callable[[Path], LabelledSet]  # of a folder of classes


def is_split(path: Path) -> bool:
    """Whether train/ and test/ hold folders of classes, and are not classes themselves."""
    return all((path / half).is_dir() and any(map(Path.is_dir, entries(path / half))) for half in HALVES)


def lone_half(path: Path) -> Path | None:
    """train/ or test/ that holds nothing but folders, where the other does not: it would be taken for a class."""
    inside = {path / half: entries(path / half) for half in HALVES if (path / half).is_dir()}
    holders = [half for half, found in inside.items() if found and all(map(Path.is_dir, found))]
    return holders[0] if len(holders) == 1 and not is_split(path) else None


def alone(half: Path) -> DataError:
    (other,) = set(HALVES) - {half.name}
    reason = f"holds folders, as if they were the classes, and there is no {other} beside it that does"
    return problem(half, reason, "Add it, or put the folders of all classes side by side, to have each class split")


def has_parts(path: Path) -> bool:
    """Whether it is for transfer: the parts share their classes, and serve no episodes."""
    return is_split(path) or lone_half(path) is not None


def class_folders(path: Path) -> list[Path]:
    """What holds the folders of classes: the parts that there are, or the folder itself."""
    return [path / part for part in PARTS if (path / part).is_dir()] if is_split(path) else [path]


def load_own(path: Path, size: int | None, seed: int, progress: Progress) -> LabelledSplits:
    """By its own sub-folders train/, test/ and, where there is one, val/; else 60 / 20 / 20 % of each class, drawn."""
    return _split(path, seed, lambda folder: _read(folder, size or SIDE, progress))


def count_own(path: Path, seed: int, without: Container[Path] = ()) -> LabelledSplits:
    """The same by the same rules, with pictures of no pixels: nothing is decoded; `without` is taken for removed."""
    return _split(path, seed, lambda folder: _unread(_several_classes(folder, without)))


def _split(path: Path, seed: int, read: Reader) -> LabelledSplits:
    if lone := lone_half(path):
        raise alone(lone)
    if not is_split(path):
        return _drawn(read(path), seed, path)
    train, test = read(path / "train"), read(path / "test")
    _require_same_classes(train, test, path)
    if not (path / "val").is_dir():
        share = FRACTIONS[1] / (FRACTIONS[0] + FRACTIONS[1])
        held = [i for row in shuffled_classes(train.labels.numpy(), seed) for i in row[: round(len(row) * share)]]
        if not held:
            reason = "has too few pictures of each class to hold some out for validation"
            raise problem(path / "train", reason, "Add pictures, or a folder val beside it")
        rule = f"{share:.0%} of each class of train, drawn with seed {seed}"
        return LabelledSplits(train.at(complement(held, len(train.labels))), train.at(sorted(held)), test, rule)
    val = read(path / "val")
    _require_same_classes(train, val, path)
    return LabelledSplits(train, val, test, "the folder val")


def _drawn(whole: LabelledSet, seed: int, path: Path) -> LabelledSplits:
    _require_enough(whole, path)
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for row in shuffled_classes(whole.labels.numpy(), seed):
        train, val, _ = sizes_from_fractions(len(row), FRACTIONS)
        for part, indices in zip(parts, (row[:train], row[train : train + val], row[train + val :]), strict=True):
            part += indices
    train_set, val_set, test_set = (whole.at(sorted(part)) for part in parts)
    return LabelledSplits(train_set, val_set, test_set, f"{FRACTIONS[1]:.0%} of each class, drawn with seed {seed}")


def _require_enough(whole: LabelledSet, path: Path) -> None:
    """All that are too small are named: they can be put right in one go."""
    least = len(FRACTIONS)
    sizes = zip(whole.names, whole.sizes, strict=True)
    if small := [f"{printable(name)} ({size})" for name, size in sizes if size < least]:
        need = f"training, validation and testing need {least} pictures of each class"
        have = f"of {how_many(len(whole.names), 'class', 'classes')} {len(small)} {_has(small)} fewer"
        raise problem(path, f"{need}, but {have}: {', '.join(small)}", "Add pictures, or remove what has too few")


def _has(names: list[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _read(path: Path, size: int, progress: Progress) -> LabelledSet:
    files = _several_classes(path)
    key = f"{size} {fingerprint(path)}"
    arrays = cached(f"folder-{size}", key, lambda: _decode(files, size, progress))
    return labelled(arrays["images"], _labels(files), files)


def _unread(files: Files) -> LabelledSet:
    labels = _labels(files)
    return labelled(np.empty((len(labels), CHANNELS, 0, 0), np.uint8), labels, files)


def _several_classes(path: Path, without: Container[Path] = ()) -> Files:
    files = class_files(path, without)
    if not files:
        raise problem(path, "has no class folders", "Give a folder with one sub-folder of pictures per class")
    if len(files) == 1:
        raise problem(path, "has a single class: there is nothing to tell apart", "Add a folder of another class")
    return files


def _labels(files: Files) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(files)), [len(row) for row in files.values()])


def _decode(files: Files, size: int, progress: Progress) -> Arrays:
    paths = [file for row in files.values() for file in row]
    images = np.empty((len(paths), CHANNELS, size, size), np.uint8)
    for i, pixels in enumerate(counted(_pictures(paths, size), len(paths), progress)):
        images[i] = pixels
    return {"images": images}


def _pictures(paths: Iterable[Path], size: int) -> Iterable[Pixels]:
    return (read_in_class(path, size, CHANNELS, Resampling.BILINEAR) for path in paths)


def _require_same_classes(train: LabelledSet, other: LabelledSet, path: Path) -> None:
    if strange := sorted(set(train.names).symmetric_difference(other.names)):
        named = ", ".join(map(printable, strange))
        reason = f"the class {named} is" if len(strange) == 1 else f"the classes {named} are"
        raise problem(path, f"{reason} not in every part", "Give every part the same classes")
