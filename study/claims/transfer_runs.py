"""Transfer runs of a preset. They test themselves after every epoch; what counts is test at the first best validation.

Those of LOOKED_AT also look, some LOOKS times, at how the transfer gradient changes in a virtual step.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from metastep.data.errors import Progress
from metastep.data.registry import data_set
from metastep.errors import MetastepError
from metastep.train.config import Transfer
from metastep.train.presets import transfer
from metastep.train.record import read_metrics
from metastep.train.run import Run, how_far
from metastep.train.schema import Device
from metastep.train.transfer.building import find_weights
from study.claims.data_notes import data_root, files_note
from study.claims.outcomes import Outcome, read_beside, read_made
from study.targets import SIZES

LOOKED_AT, LOOKS = "-sgd-baseline", 144  # as the paper's figure does; a look takes as long as several iterations


def presets() -> dict[str, Transfer]:
    return transfer()


def configured(preset: str, seed: int, iterations: int | None, changes: dict[str, Any]) -> Transfer:
    del iterations  # of few-shot runs; a transfer run is a number of epochs, and its schedule ends with them
    looks = look_every(preset) if preset.endswith(LOOKED_AT) else 0
    return replace(transfer()[preset], seed=seed, gradient_difference=looks, **changes)


def look_every(preset: str) -> int:
    """In iterations; by the paper's sizes, or once in an epoch where it has none"""
    config, target = transfer()[preset], preset.partition("-")[0]
    of_an_epoch = -(-SIZES[target][0] // config.batch) if target in SIZES else LOOKS
    return max(1, config.epochs * of_an_epoch // LOOKS)


def is_of(config: Any, preset: str) -> bool:
    return isinstance(config, Transfer) and config.essential == configured(preset, config.seed, None, {}).essential


def trained_as(preset: str) -> str:
    return preset


def read(folder: Path) -> Transfer:
    return Run.open(folder).config(Transfer)


def lacking(config: Transfer, data: Path | None) -> str | None:
    if not is_there(config.data.name, data):
        return config.data.name
    if config.needs_source and config.source.weights:
        try:
            find_weights(config.source.weights, data)
        except MetastepError:
            return config.source.weights
    return None


def is_there(name: str, data: Path | None) -> bool:
    """Whether a data set is available"""
    kind, root = data_set(name), data_root(data)
    return kind.embedded or bool(root and kind.find(root))


def described(config: Transfer, data: Path | None) -> str:
    kind, root = data_set(config.data.name), data_root(data)
    source = ""
    if config.needs_source:
        source = f"; source {config.source.net}, {config.source.weights or f'trained on {config.source.dataset}'}"
    files = files_note(kind.find(root)) if root else ""
    return f"{config.data.name} at {config.data.size}×{config.data.size}, {config.data.augment}{files}{source}"


def judged(folder: Path) -> bool:
    del folder  # every epoch was
    return True


def test(folder: Path, data: Path | None, device: Device, progress: Progress) -> None:
    """It was, after every epoch"""


def outcome(folder: Path, preset: str) -> Outcome:
    run, config = Run.open(folder), read(folder)
    trained = how_far(run)
    assert trained.test is not None  # it is finished
    return Outcome(
        preset,
        config.seed,
        100 * trained.test,
        trained.iterations,
        trained.iterations,
        trained.seconds,
        config.precision,
        read_made(folder),
        config.shared,
        beside=read_beside(folder),
        gradient_differences=gradient_differences(run.metrics_path),
    )


def gradient_differences(metrics: Path) -> tuple[tuple[float, float], ...]:
    rows = read_metrics(metrics)
    return tuple((row["epoch"], row["gradient_difference"]) for row in rows if row["kind"] == "gradient_difference")
