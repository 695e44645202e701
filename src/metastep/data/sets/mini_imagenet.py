"""miniImageNet: 100 ImageNet classes of 600 pictures, 84x84, split 64/16/20 by Ravi and Larochelle."""

import csv
import io
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from metastep.data.archives import read_members
from metastep.data.cache import Arrays, cached
from metastep.data.errors import missing, problem
from metastep.data.files import entries, exists, fingerprint, read_pack
from metastep.data.images import open_picture, to_pixels
from metastep.data.packs import cut_sheet
from metastep.data.pictures import ImageSet, Pixels, stack_classes
from metastep.data.progress import Progress, counted, silent
from metastep.data.splits import Split, known_split
from metastep.errors import how_many

SIZE, PER_CLASS = 84, 600
SOURCE = "built from ImageNet (https://image-net.org) with the csv files of Ravi and Larochelle"
CLASSES: dict[Split, int] = {"train": 64, "val": 16, "test": 20}
PACKS: dict[Split, tuple[str, ...]] = {
    "train": ("miniimagenet84_train_a.npz", "miniimagenet84_train_b.npz", "miniimagenet84_train_c.npz"),
    "val": ("miniimagenet84_val.npz",),
    "test": ("miniimagenet84_test.npz",),
}
NAMES = ("mini_imagenet", "mini-imagenet", "miniimagenet", "miniImagenet", "miniImageNet", "")
SUFFIXES = ("", ".zip", ".tar", ".tar.gz", ".tgz")
_Labelled = Iterator[tuple[str, str, Pixels]]  # class, name within the class, pixels


def load_mini_imagenet(root: Path, split: Split = "train", *, progress: Progress = silent) -> ImageSet:
    """One split, from the packs, from `images/` and three csv files, or from `train|val|test/<class>/`.

    Classes are sorted by name and pictures by file name, so every source gives the same order. Decoding takes
    minutes, so its result is kept in the cache folder and memory-mapped from then on.
    """
    entries(root)  # says so if the folder cannot be opened at all
    source = find_mini_imagenet(root, known_split(split, tuple(CLASSES)))
    if not source:
        what = f"the {split} split of miniImageNet (a folder mini_imagenet with images/ and {split}.csv)"
        raise missing(root, what, SOURCE)
    arrays = cached(
        f"mini_imagenet-{split}", "".join(map(fingerprint, source)), lambda: _decode(source, split, progress)
    )
    names = tuple(map(str, arrays["names"]))
    return ImageSet(torch.from_numpy(arrays["images"]), names, names, tuple(map(int, arrays["counts"])))


def find_mini_imagenet(root: Path, split: Split) -> tuple[Path, ...]:
    """The packs of a split, or the one folder or archive that holds it; else nothing."""
    for folder in (root / name for name in NAMES):
        packs = tuple(folder / name for name in PACKS[split])
        if all(map(exists, packs)):
            return packs
    for path in (root / f"{name}{suffix}" for name in NAMES if name for suffix in SUFFIXES):
        if _has_layout(path, split) or (exists(path) and path.is_file()):
            return (path,)
    return (root,) if _has_layout(root, split) else ()


def _has_layout(folder: Path, split: Split) -> bool:
    return exists(folder / f"{split}.csv") or exists(folder / split)


def _decode(source: tuple[Path, ...], split: Split, progress: Progress) -> Arrays:
    pictures = _from_packs(source) if source[0].suffix == ".npz" else _from_tree(source[0], split)
    classes: dict[str, dict[str, Pixels]] = {}
    for label, name, pixels in counted(pictures, CLASSES[split] * PER_CLASS, progress):
        classes.setdefault(label, {})[name] = pixels
    if len(classes) != CLASSES[split]:
        reason = f"has {how_many(len(classes), 'class', 'classes')} in its {split} split instead of {CLASSES[split]}"
        raise problem(source[0], reason, "Get the Ravi-Larochelle split of miniImageNet")
    labels = sorted(classes)
    images, counts = stack_classes([_by_name(classes[label]) for label in labels])
    return {"images": images, "names": np.array(labels), "counts": np.array(counts)}


def _by_name(pictures: dict[str, Pixels]) -> list[Pixels]:
    return [pictures[name] for name in sorted(pictures)]


def _from_packs(packs: tuple[Path, ...]) -> _Labelled:
    """Each pack holds one sheet per class; its `label`s index the `wnid`s of the whole split."""
    for path in packs:
        pack = read_pack(path, ("blob", "offset", "count", "hw", "label", "wnid", "image_no"))
        starts = np.cumsum([0, *pack["count"]])
        whole = len(pack["label"]) == len(pack["image_no"]) == starts[-1] and len(pack["offset"]) == len(starts)
        if not whole or tuple(pack["hw"]) != (SIZE, SIZE) or max(pack["label"]) >= len(pack["wnid"]):
            raise problem(path, f"does not hold labelled pictures of {SIZE}x{SIZE}", "Copy it again")
        for i, (start, end) in enumerate(pairwise(starts)):
            wnid = str(pack["wnid"][pack["label"][start]])
            sheet = pack["blob"][pack["offset"][i] : pack["offset"][i + 1]].tobytes()
            tiles = cut_sheet(sheet, f"{path}/{wnid}", end - start, SIZE)
            for number, tile in zip(pack["image_no"][start:end], tiles, strict=True):
                yield wnid, f"{wnid}{number:08d}.jpg", tile


def _from_tree(path: Path, split: Split) -> _Labelled:
    """From a folder or an archive: the csv of the split decides where there is one, else the folder names."""
    labels = _labels_from_csv(path, split)
    missing = set(labels)

    def label_of(name: str) -> str | None:
        return labels.get(PurePosixPath(name).name) if labels else _label_from_folder(name, split)

    for name, data in read_members(path, keep=lambda name: label_of(name) is not None):
        picture = open_picture(data, f"{path}/{name}", smallest=SIZE)
        missing.discard(PurePosixPath(name).name)
        yield label_of(name) or "", PurePosixPath(name).name, to_pixels(picture, SIZE, channels=3)
    if missing:
        reason = f"lacks {len(missing):,} of the pictures that {split}.csv lists, {min(missing)} for one"
        raise problem(path, reason, "Get them again")


def _label_from_folder(name: str, split: Split) -> str | None:
    parts = PurePosixPath(name).parts
    return parts[-2] if len(parts) >= 3 and parts[-3] == split else None


def _labels_from_csv(path: Path, split: Split) -> dict[str, str]:
    """File name -> class, as the split's csv lists them; empty where there is no csv."""
    tables = dict(read_members(path, keep=lambda name: PurePosixPath(name).name == f"{split}.csv"))
    if len(tables) > 1:
        raise problem(path, f"has more than one {split}.csv: {', '.join(tables)}", "Keep one")
    labels: dict[str, str] = {}
    for where, table in tables.items():
        try:
            rows = list(csv.DictReader(io.StringIO(table.decode()), strict=True))
            labels = {row["filename"]: row["label"] for row in rows}
        except (KeyError, UnicodeDecodeError, csv.Error) as error:
            raise problem(f"{path}/{where}", "has no columns filename,label", "Get it again") from error
        if not labels or None in labels.values():
            raise problem(f"{path}/{where}", "is cut short", "Get it again")
    return labels
