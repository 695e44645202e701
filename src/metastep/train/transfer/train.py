"""Transfer training, in the open: draw a batch, make an iteration of Algorithm 1, judge every epoch, keep.

All that an iteration depends on is in the checkpoint, or is a function of (seed, epoch, batch): a run that was
interrupted goes on as if it had not been, bit for bit on a CPU. It pauses where it would wait for the device, every few
iterations and when an epoch is over: beside others, too, it ends as it would have alone.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from metastep.data.errors import printable
from metastep.data.pictures import Labelled
from metastep.data.progress import QUIETLY, Progress, silent
from metastep.train.config import Transfer
from metastep.train.device import environment
from metastep.train.errors import CheckpointError
from metastep.train.progress import say
from metastep.train.record import recording
from metastep.train.run import Run
from metastep.train.stop import stop_on_signals
from metastep.train.transfer.building import Parts, prepare, trusted
from metastep.train.transfer.checkpoint import Keeper, from_tree
from metastep.train.transfer.epoch import (
    Loop,
    StoppedBefore,
    Sums,
    Trained,
    finish_epoch,
    require_finite,
    run_epoch,
    training_state,
)
from metastep.train.transfer.method import TransferState
from metastep.train.transfer.reading import read_data, remembered, require_alike, with_data_moved
from metastep.train.transfer.source import export, find_weights, is_exported, source_run
from metastep.train.turns import Turns, run_alone

SOURCE = "source"  # in the folder of a run: the run that trains its source


def train_in_turns(
    config: Transfer,
    folder: Path,
    data: Path | None = None,
    reading: AbstractContextManager[Progress] = QUIETLY,
) -> Turns[Trained]:
    """A new run in `folder`, which must be empty or not there; `data` is the directory that data sets are in.

    A source that has no weights is trained first, as a run of its own in `folder`/source.
    """
    with reading as progress:
        splits = read_data(config, data, progress)
        config = remembered(config, data)
        source = _new_source(config, splits, folder / SOURCE, data, progress) if config.trains_source else None
    if source:
        return (yield from _train_after(source, Run.create(folder, config), config, splits))
    parts = prepare(config, splits, _weights(config, folder, data))
    return (yield from _train(Run.create(folder, config), config, parts))


def resume_in_turns(
    folder: Path,
    data: Path | None = None,
    source_net: str | None = None,
    target_net: str | None = None,
    source_data: str | None = None,
    target_data: str | None = None,
) -> Turns[Trained]:
    """Go on from the last checkpoint; nets of the user's own are named again, and not imported otherwise.

    source_data, target_data: where users' own folders of pictures are, if they were moved; the run remembers it.
    """
    return (yield from _reopened(folder, data, source_net, target_net, source_data, target_data))


train, resume = run_alone(train_in_turns), run_alone(resume_in_turns)


# What follows reads and prepares at once, and writes when its turn comes: a run that cannot be made leaves no folder,
# and one that cannot go on is left as it was.


def _new_source(
    config: Transfer, splits: Labelled, place: Path, data: Path | None, progress: Progress = silent
) -> Turns[Trained]:
    first = source_run(config)
    pictures = read_data(first, data, progress)
    require_alike(config, pictures, splits)
    prepare(config, splits, None)  # only to see whether it can be: its turn comes after that of the source
    return _created(place, first, prepare(first, pictures, None))


def _reopened(
    folder: Path,
    data: Path | None,
    source_net: str | None = None,
    target_net: str | None = None,
    source_data: str | None = None,
    target_data: str | None = None,
) -> Turns[Trained]:
    run = Run.open(folder)
    kept = with_data_moved(run.config(Transfer), data, source_data, target_data)
    config = trusted(kept, target=target_net, **({"source": source_net} if kept.needs_source else {}))
    splits = read_data(config, data)
    if config.trains_source and (source_data is not None or not is_exported(folder / SOURCE)):
        source = _source_again(config, splits, folder / SOURCE, data, source_data)
        return _reconfigured(run, kept, _train_after(source, run, config, splits))
    return _reconfigured(run, kept, _train(run, config, prepare(config, splits, _weights(config, folder, data))))


def _source_again(
    config: Transfer, splits: Labelled, place: Path, data: Path | None, source_data: str | None
) -> Turns[Trained]:
    if Run.is_there(place):
        return _reopened(place, data, target_net=config.source.net, target_data=source_data)
    return _new_source(config, splits, place, data)


def _weights(config: Transfer, folder: Path, data: Path | None) -> Path | None:
    """Of the source, if there is any"""
    if not config.needs_source:
        return None
    given = config.source.weights
    return find_weights(given, data) if given else find_weights(str(folder / SOURCE), None)


def _created(folder: Path, config: Transfer, parts: Parts) -> Turns[Trained]:
    return (yield from _train(Run.create(folder, config), config, parts))


def _reconfigured(run: Run, config: Transfer, training: Turns[Trained]) -> Turns[Trained]:
    if config != run.config(Transfer):
        with run.lock():
            run.configure(config)
    return (yield from training)


def _train_after(source: Turns[Trained], run: Run, config: Transfer, splits: Labelled) -> Turns[Trained]:
    with stop_on_signals() as stop:
        if is_first := not is_exported(run.folder / SOURCE):
            say(f"First the source: {_in_short(source_run(config))}.", run.folder.name)
        taught = yield from source
        if stop.requested:  # be it in the source's last iteration
            return StoppedBefore(source=taught)
        if is_first:
            say(f"Then the target: {_in_short(config)}.", run.folder.name)
        return (yield from _train(run, config, prepare(config, splits, _weights(config, run.folder, None))))


def _in_short(config: Transfer) -> str:
    epochs = f"{config.epochs} epoch{'s' if config.epochs > 1 else ''}"
    return f"{config.net.name} on {printable(config.data.name)}, {epochs}"


def _train(run: Run, config: Transfer, parts: Parts) -> Turns[Trained]:
    with run.lock(), stop_on_signals() as stop:
        saved = run.load() if run.last.is_file() else None
        state, sums, at = restored(saved, parts, run) if saved else (parts.initial, {}, Trained())
        done = at.epoch * len(parts.train) + at.batch
        with recording(run, done if saved else None, config.epochs * len(parts.train)) as record:
            loop = Loop(config, parts, record, Keeper(record, config.checkpoint_seconds), stop)
            goes_on = at.epoch < config.epochs
            if goes_on:
                record.note(done, "environment", **environment(parts.train.data.images.device))
                record.note(done, "layers", **parts.layers)
                if parts.step.notice:
                    record.say(f"The iteration is first {parts.step.notice}.")
            while at.epoch < config.epochs and not stop.requested:
                state, sums = yield from run_epoch(loop, state, sums, at)
                if at.batch == len(parts.train):
                    yield from finish_epoch(loop, state, sums, at)
                    sums = {}
                else:
                    require_finite(loop, state, sums, at)
                    loop.keeper.write(loop.step(at), training_state(state, sums, at))
            if goes_on:
                record.note(loop.step(at), "engine", path=parts.step.path)  # known only when it was used
        if at.epoch == config.epochs:
            export_best(run, parts)
    return at


def restored(saved: dict[str, Any], parts: Parts, run: Run) -> tuple[TransferState, Sums, Trained]:
    device = parts.train.data.images.device
    try:
        state = from_tree(saved["state"], parts.initial, run.last)
        return state, {name: value.to(device) for name, value in saved["sums"].items()}, Trained(**saved["trained"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{str(run.last)!r}: is no checkpoint of transfer training ({error}).") from error


def export_best(run: Run, parts: Parts) -> None:
    """What was trained, for other programs and for other runs to learn from"""
    state = run.load("best")["state"]
    tensors = {**parts.net.state_dict(), **state["buffers"], **state["target"]["params"]["target"]}
    export(run.folder, tensors, len(parts.train.data.names))
