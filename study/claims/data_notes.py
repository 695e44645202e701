"""What there is to say about the pictures that a claim was tested on."""

from collections.abc import Sequence
from pathlib import Path

from metastep.data.registry import data_directory

LOSSY = {  # packs that are not the original pictures
    "miniimagenet84_": "re-encoded as AVIF of quality 80, 38 dB from the JPEGs they were made of",
    "cifar100_avif93": "re-encoded as AVIF of quality 93, 40 dB from the original",
}


def data_root(data: Path | None) -> Path | None:
    root = data or data_directory()
    return root.expanduser() if root else None


def files_note(paths: Sequence[Path]) -> str:
    """Which files, where they are not the official ones, and what was done to them"""
    packs = [path.name for path in paths if path.suffix == ".npz"]
    if not packs:
        return ""
    done = [what for beginning, what in LOSSY.items() if packs[0].startswith(beginning)]
    return f"; {', '.join(packs)}{''.join(f' ({what})' for what in done)}"
