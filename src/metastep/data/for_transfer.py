"""What `metastep transfer run` would do with a user's own folder: which pictures are for what, and in how many batches.

A folder is refused here by the code, and so in the words, by which it is refused there.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from metastep.data.batches import Batches
from metastep.data.check import Finding
from metastep.data.folder import class_files
from metastep.data.images import Look, look_at
from metastep.data.labelled import SEED
from metastep.data.own import class_folders, count_own
from metastep.data.pictures import LabelledSplits
from metastep.errors import MetastepError


class Outlook(NamedTuple):
    """Of a folder, without what was found to be wrong with it."""

    splits: LabelledSplits  # of pictures without pixels
    looks: list[Look]


def outlook(folder: Path, findings: Iterable[Finding]) -> Outlook | str:
    """Else why it will not do, and what to do about it."""
    found = {finding.path for finding in findings}
    try:
        splits = count_own(folder, SEED, found)
    except MetastepError as error:
        return str(error)
    classes = [files for part in class_folders(folder) for files in class_files(part, found).values()]
    return Outlook(splits, [look_at(file) for files in classes for file in files])


def in_words(seen: Outlook, size: int, batch: int) -> list[str]:
    """What the numbers of each class do not tell, a line for each matter."""
    made = f"each is stretched to {size}x{size} pixels (--size) and read in colour: the source has to be for colour too"
    return [
        f"pictures: {_kinds(seen.looks)}; {made}",
        f"validation: {seen.splits.validation}",
        f"batches: {_batches(seen.splits, batch)}",
    ]


def _kinds(looks: list[Look]) -> str:
    smallest, largest = (pick(looks, key=lambda look: look.width * look.height) for pick in (min, max))
    ends = dict.fromkeys(f"{look.width}x{look.height}" for look in (smallest, largest))
    grey = sum(look.is_grey for look in looks)
    kind = "in colour" if not grey else "grey" if grey == len(looks) else f"{grey:,} grey and the others in colour"
    return f"{len(looks):,} of {' to '.join(ends)}, {kind}"


def _batches(splits: LabelledSplits, size: int) -> str:
    number = len(Batches(splits.train, size))
    last = len(splits.train.labels) - (number - 1) * size
    lonely = ", which is too few for the statistics of some nets: choose another --batch" if last == 1 else ""
    return f"{number:,} in an epoch, of up to {size} pictures (--batch), the last of {last}{lonely}"
