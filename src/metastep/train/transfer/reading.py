"""The labelled pictures of a run; a user's own folder is found again, and only with the pictures that it had."""

from dataclasses import replace
from pathlib import Path

from metastep.data.errors import printable
from metastep.data.folder import fingerprint_of, moved, placed, require_remembered
from metastep.data.names import PREFIX
from metastep.data.pictures import Labelled
from metastep.data.progress import Progress, silent
from metastep.data.registry import is_own, load
from metastep.errors import MetastepError
from metastep.train.config import Transfer
from metastep.train.transfer.source import OTHER_SOURCE, coloured

AGAIN = (
    "metastep resume RUN data=folder:PATH, of a source source.dataset=folder:PATH; or once, metastep evaluate RUN "
    "--dataset folder:PATH"
)


def read_data(config: Transfer, root: Path | None, progress: Progress = silent) -> Labelled:
    data = config.data
    require_remembered(data.name, data.fingerprint, root, AGAIN)
    return load(data.name, root, data.size, progress=progress).labelled(per_class=data.per_class)


def require_alike(config: Transfer, source: Labelled, target: Labelled) -> None:
    """Before the source is trained, and not after it: it has to see the target's pictures"""
    theirs, ours = (splits.train.images.shape[1] for splits in (source, target))
    if theirs != ours:
        known, name = config.source.dataset or "", config.data.name
        reason = f"its pictures are {_seen(known, theirs)}, and those of {printable(name)} are {_seen(name, ours)}"
        raise MetastepError(f"source.dataset = {printable(known)}: {reason}. {OTHER_SOURCE}")


def _seen(name: str, channels: int) -> str:
    """Whoever has a folder of grey pictures wonders at their colour"""
    return f"{'read ' if name.startswith(PREFIX) else ''}{coloured(channels)}"


def remembered(config: Transfer, root: Path | None) -> Transfer:
    """`config` with the places of the user's own folders and files, and what the folders hold now.

    Weights that are named below the data directory keep that name: for others, the directory may be elsewhere.
    """
    data, source = config.data, config.source
    if is_own(data.name, root):
        data = replace(data, name=placed(data.name, root), fingerprint=fingerprint_of(data.name, root))
    if config.trains_source and source.dataset is not None and is_own(source.dataset, root):
        fingerprint = fingerprint_of(source.dataset, root)
        source = replace(source, dataset=placed(source.dataset, root), fingerprint=fingerprint)
    if source.weights is not None and (file := Path(source.weights).expanduser()).exists():
        source = replace(source, weights=str(file.resolve()))
    return replace(config, data=data, source=source)


def with_data_moved(
    config: Transfer,
    root: Path | None,
    source_data: str | None,
    target_data: str | None,
) -> Transfer:
    """The same run, whose folders are elsewhere now"""
    data, source = config.data, config.source
    if target_data is not None:
        name = moved(data.name, data.fingerprint, target_data, root, AGAIN)
        data = replace(data, name=name, fingerprint=fingerprint_of(name, root))
    if source_data is not None:
        name = moved(source.dataset, source.fingerprint, source_data, root, AGAIN)
        source = replace(source, dataset=name, fingerprint=fingerprint_of(name, root))
    return replace(config, data=data, source=source)
