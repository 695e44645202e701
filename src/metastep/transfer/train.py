"""Transfer training, in the open: draw a batch, make an iteration of Algorithm 1, judge every epoch, keep.

All that an iteration depends on is in the checkpoint, or is a function of (seed, epoch, batch): a run that was
interrupted goes on as if it had not been, bit for bit on a CPU. It pauses where it would wait for the device, every few
iterations and when an epoch is over: beside others, too, it ends as it would have alone.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from metastep.data.labelled import LabelledSplits
from metastep.data.progress import QUIETLY, Progress
from metastep.runs import CheckpointError, Run, stop_on_signals
from metastep.runs.device import environment
from metastep.runs.record import recording
from metastep.runs.together import Turns, run_alone
from metastep.transfer.building import Parts, prepare
from metastep.transfer.checkpoint import from_tree
from metastep.transfer.config import TransferConfig, trusted
from metastep.transfer.epoch import Loop, Sums, Trained, finish_epoch, require_finite, run_epoch, training_state
from metastep.transfer.method import TransferState
from metastep.transfer.reading import read_data, remembered, with_data_moved
from metastep.transfer.source import export, find_weights, source_run


def train_in_turns(
    config: TransferConfig,
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
    weights = find_weights(config.source.weights, data) if config.source.weights and needs_source(config) else None
    if weights or not needs_source(config):
        parts = prepare(config, splits, weights)  # before there is a folder: what cannot be trained leaves none
        return (yield from _train(Run.create(folder, config), config, parts))
    run = Run.create(folder, config)
    return (yield from _train_after_source(run, config, splits, data))


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
    run = Run.open(folder)
    config = run.config(TransferConfig)
    if source_data is not None or target_data is not None:
        config = with_data_moved(config, data, source_data, target_data, _fingerprint_of_source(run))
        with run.lock():
            run.configure(config)
    config = trusted(config, target=target_net, **({"source": source_net} if needs_source(config) else {}))
    splits = read_data(config, data)
    if needs_source(config) and not config.source.weights:
        return (yield from _train_after_source(run, config, splits, data, source_data))
    weights = find_weights(config.source.weights or "", data) if needs_source(config) else None
    return (yield from _train(run, config, prepare(config, splits, weights)))


train, resume = run_alone(train_in_turns), run_alone(resume_in_turns)


def _fingerprint_of_source(run: Run) -> str | None:
    """What the run that trains the source remembers; None before there is one"""
    place = run.folder / "source"
    return Run.open(place).config(TransferConfig).data.fingerprint if (place / "config.json").is_file() else None


def needs_source(config: TransferConfig) -> bool:
    return config.method.name != "scratch"


def _train_after_source(
    run: Run, config: TransferConfig, splits: LabelledSplits, data: Path | None, source_data: str | None = None
) -> Turns[Trained]:
    place = run.folder / "source"
    started = (place / "config.json").is_file()
    with stop_on_signals() as stop:
        if started:
            yield from resume_in_turns(place, data, target_net=config.source.net, target_data=source_data)
        else:
            yield from train_in_turns(source_run(config), place, data)
        if stop.requested:  # be it in the source's last iteration
            return Trained()
        return (yield from _train(run, config, prepare(config, splits, find_weights(str(place), None))))


def _train(run: Run, config: TransferConfig, parts: Parts) -> Turns[Trained]:
    with run.lock(), stop_on_signals() as stop:
        saved = run.load() if run.last.is_file() else None
        state, sums, at = restored(saved, parts, run) if saved else (parts.initial, {}, Trained())
        done = at.epoch * len(parts.train) + at.batch
        with recording(run, done if saved else None, config.epochs * len(parts.train)) as record:
            loop = Loop(config, parts, record, stop)
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
                    record.save(loop.step(at), training_state(state, sums, at))
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
