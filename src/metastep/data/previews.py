"""What `metastep data show` and `metastep data check` read of a data set."""

from pathlib import Path

import torch

from metastep.data.labelled import OWN, is_parted, labelled_entry, load_labelled, only_labelled
from metastep.data.pictures import ImageSet, LabelledSet, stack_classes
from metastep.data.progress import Progress
from metastep.data.registry import FOLDER, load, own_folder, resolve
from metastep.data.splits import PARTS, known_split

MOST_SHOWN = 30  # pictures of each class of a labelled set that contact sheets choose from
Preview = tuple[str, str, ImageSet]  # what to call it, the split that was meant, its pictures


def preview(name: str, data: Path | None, split: str | None, progress: Progress) -> Preview:
    """A few pictures of each class; of a user's own train/ and test/, too, one part."""
    read = read_labelled if only_labelled(name) or is_parted(name, data) else read_classes
    return read(name, data, split, progress)


def read_classes(name: str, data: Path | None, split: str | None, progress: Progress) -> Preview:
    """Of a data set for episodes."""
    entry, folder = resolve(name, data)
    split = split if split is not None else entry.splits[0]
    return folder.resolve().name if entry is FOLDER else entry.name, split, load(name, data, split, progress)


def read_labelled(name: str, data: Path | None, split: str | None, progress: Progress) -> Preview:
    """Of a labelled data set."""
    part = known_split(split if split is not None else PARTS[0], PARTS)
    chosen: LabelledSet = getattr(load_labelled(name, data, progress=progress), part)
    label = own_folder(name, data).resolve().name if labelled_entry(name, data) is OWN else name
    return label, part, by_class(chosen, MOST_SHOWN)


def by_class(data: LabelledSet, most: int) -> ImageSet:
    """The first pictures of each class, for contact sheets."""
    rows = [data.images[data.labels == label][:most].numpy() for label in range(len(data.names))]
    images, counts = stack_classes([list(row) for row in rows])
    return ImageSet(torch.from_numpy(images), data.names, data.names, counts)


def describe(name: str, data: Path | None, progress: Progress) -> str:
    """That all is well with a labelled data set: reading it compares its numbers with those of the paper."""
    splits = load_labelled(name, data, progress=progress)
    counts = ", ".join(f"{len(getattr(splits, part).labels):,} {part}" for part in PARTS)
    return f"{name}: all is well: {counts}; validation: {splits.validation}"
