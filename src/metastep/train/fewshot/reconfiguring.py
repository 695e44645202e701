"""What may change of a run that goes on: how many iterations it is to make, and where its pictures are."""

from dataclasses import replace
from pathlib import Path

from metastep.data.folder import fingerprint_of, moved
from metastep.train.config import Data, FewShot
from metastep.train.fewshot.longer import lengthened
from metastep.train.fewshot.sampling import AGAIN
from metastep.train.run import Run


def reconfigured(run: Run, iterations: int | None, dataset: str | None, root: Path | None) -> FewShot:
    """Its configuration with so many iterations, and its folder in that place; as it was where they are None"""
    config = run.config(FewShot) if iterations is None else lengthened(run, iterations)
    return config if dataset is None else replace(config, data=_moved(config.data, dataset, root))


def reconfigure(run: Run, iterations: int | None, dataset: str | None, root: Path | None) -> None:
    with run.lock():
        run.configure(reconfigured(run, iterations, dataset, root))


def _moved(data: Data, to: str, root: Path | None) -> Data:
    name = moved(data.name, data.fingerprint, to, root, AGAIN)
    return replace(data, name=name, fingerprint=fingerprint_of(name, root))
