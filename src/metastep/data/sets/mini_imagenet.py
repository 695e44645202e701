"""miniImageNet: 100 ImageNet classes of 600 pictures, 84x84, split 64/16/20 by Ravi and Larochelle."""

import csv
import io
from collections.abc import Iterator
from itertools import chain
from pathlib import Path, PurePosixPath

import numpy as np

from metastep.core.registry import register
from metastep.data.cache import Arrays, cached
from metastep.data.errors import Progress, counted, missing, problem
from metastep.data.files import entries, exists, find_parts, fingerprint, read_members, read_pack
from metastep.data.images import open_picture, resized, sheets, to_pixels
from metastep.data.pictures import PARTS, Part, Pictures, Pixels, Split, joined, parts_of
from metastep.data.registry import RESEARCH, ClassSplit
from metastep.errors import how_many

SIDE, PER_CLASS = 84, 600
RECIPE = 2  # raise it when what is kept changes: older caches are then ignored
CLASSES: dict[Part, int] = {"train": 64, "val": 16, "test": 20}
PACKS: dict[Part, tuple[str, ...]] = {
    "train": ("miniimagenet84_train_a.npz", "miniimagenet84_train_b.npz", "miniimagenet84_train_c.npz"),
    "val": ("miniimagenet84_val.npz",),
    "test": ("miniimagenet84_test.npz",),
}
NAMES = ("mini_imagenet", "mini-imagenet", "miniimagenet", "miniImagenet", "miniImageNet", "")
SUFFIXES = ("", ".zip", ".tar", ".tar.gz", ".tgz")
_Labelled = Iterator[tuple[str, str, Pixels]]  # class, name within the class, pixels


@register("dataset", "mini_imagenet")
class MiniImageNet(ClassSplit):
    """Classes are sorted by name and pictures by file name, so every source gives the same order."""

    summary = "100 ImageNet classes of 600 photos, 84x84, Ravi-Larochelle split 64/16/20"
    licence = f"ImageNet: {RESEARCH}"
    source = "built from ImageNet (https://image-net.org) with the csv files of Ravi and Larochelle"
    side = SIDE

    @classmethod
    def find(cls, root: Path) -> tuple[Path, ...]:
        """Return the files of all three splits."""
        found = [find_split(root, part) for part in PARTS]
        return tuple(dict.fromkeys(path for paths in found for path in paths)) if all(found) else ()

    def read_classes(self, split: Split) -> Pictures:
        """From the packs, from `images/` and three csv files, or from `train|val|test/<class>/`"""
        entries(self.root)  # says so if the folder cannot be opened at all
        parts = [self._part(part) for part in parts_of(split)]
        return parts[0] if len(parts) == 1 else joined(parts)

    def _part(self, part: Part) -> Pictures:
        """Decoding takes minutes, so its result is kept in the cache folder and memory-mapped from then on"""
        source = find_split(self.root, part)
        if not source:
            what = f"the {part} split of miniImageNet (a folder mini_imagenet with images/ and {part}.csv)"
            raise missing(self.root, what, self.source)
        key = f"{RECIPE} {''.join(map(fingerprint, source))}"
        arrays = cached(f"mini_imagenet-{part}", key, lambda: _decode(source, part, self.progress))
        images = resized(arrays["images"], self.size or SIDE)
        return Pictures.of(images, arrays["labels"], arrays["names"])


def find_split(root: Path, part: Part) -> tuple[Path, ...]:
    """Return the packs of a split, or the one folder or archive that holds it; else nothing."""
    if packs := find_parts(root, NAMES, [(name,) for name in PACKS[part]]):
        return packs
    for path in (root / f"{name}{suffix}" for name in NAMES if name for suffix in SUFFIXES):
        if _has_layout(path, part) or (exists(path) and path.is_file()):
            return (path,)
    return (root,) if _has_layout(root, part) else ()


def _has_layout(folder: Path, part: Part) -> bool:
    return exists(folder / f"{part}.csv") or exists(folder / part)


def _decode(source: tuple[Path, ...], part: Part, progress: Progress) -> Arrays:
    pictures = _from_packs(source) if source[0].suffix == ".npz" else _from_tree(source[0], part)
    classes: dict[str, dict[str, Pixels]] = {}
    for label, name, pixels in counted(pictures, CLASSES[part] * PER_CLASS, progress):
        classes.setdefault(label, {})[name] = pixels
    if len(classes) != CLASSES[part]:
        reason = f"has {how_many(len(classes), 'class', 'classes')} in its {part} split instead of {CLASSES[part]}"
        raise problem(source[0], reason, "Get the Ravi-Larochelle split of miniImageNet")
    names = sorted(classes)
    images = np.stack([classes[name][file] for name in names for file in sorted(classes[name])])
    labels = np.arange(len(names)).repeat([len(classes[name]) for name in names])
    return {"images": images, "labels": labels, "names": np.array(names)}


def _from_packs(packs: tuple[Path, ...]) -> _Labelled:
    """The `label`s of a pack index the `wnid`s of the whole split."""
    for path in packs:
        pack = read_pack(path, ("count", "label", "wnid", "image_no"))
        whole = len(pack["label"]) == len(pack["image_no"]) == pack["count"].sum()
        if not whole or max(pack["label"]) >= len(pack["wnid"]):
            raise problem(path, "has other labels than pictures", "Copy it again")
        pictures = chain.from_iterable(sheets(path, SIDE))
        for wnid, number, pixels in zip(pack["wnid"][pack["label"]], pack["image_no"], pictures, strict=True):
            yield str(wnid), f"{wnid}{number:08d}.jpg", pixels


def _from_tree(path: Path, part: Part) -> _Labelled:
    """From a folder or an archive: the csv of the split decides where there is one, else the folder names."""
    labels = _labels_from_csv(path, part)
    missing = set(labels)

    def label_of(name: str) -> str | None:
        return labels.get(PurePosixPath(name).name) if labels else _label_from_folder(name, part)

    for name, data in read_members(path, keep=lambda name: label_of(name) is not None):
        picture = open_picture(data, f"{path}/{name}", smallest=SIDE)
        missing.discard(PurePosixPath(name).name)
        yield label_of(name) or "", PurePosixPath(name).name, to_pixels(picture, SIDE, channels=3)
    if missing:
        reason = f"lacks {len(missing):,} of the pictures that {part}.csv lists, {min(missing)} for one"
        raise problem(path, reason, "Get them again")


def _label_from_folder(name: str, part: Part) -> str | None:
    parts = PurePosixPath(name).parts
    return parts[-2] if len(parts) >= 3 and parts[-3] == part else None


def _labels_from_csv(path: Path, part: Part) -> dict[str, str]:
    """File name -> class, as the split's csv lists them; empty where there is no csv."""
    tables = dict(read_members(path, keep=lambda name: PurePosixPath(name).name == f"{part}.csv"))
    if len(tables) > 1:
        raise problem(path, f"has more than one {part}.csv: {', '.join(tables)}", "Keep one")
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
