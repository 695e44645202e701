"""Transfer training, in the open: draw a batch, make an iteration of Algorithm 1, judge every epoch, keep.

All that an iteration depends on is in the checkpoint, or is a function of (seed, epoch, batch): a run that was
interrupted goes on as if it had not been, bit for bit on a CPU. Metrics are added up on the device, and read when an
epoch is over; only the progress line, and a look whether all is finite, wait for it now and then.
"""

import platform
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metastep.data.labelled import LabelledSplits, load_labelled
from metastep.data.progress import Progress, silent
from metastep.errors import NonFiniteError
from metastep.fewshot.sampling import seed_noise
from metastep.modules import draws_noise
from metastep.runs import CheckpointError, Run, Stop, stop_on_signals
from metastep.runs.record import Record, recording
from metastep.transfer.building import Parts, prepare
from metastep.transfer.checkpoint import from_tree, is_finite, to_tree
from metastep.transfer.config import TransferConfig, trusted
from metastep.transfer.evaluate import judge
from metastep.transfer.method import TransferState
from metastep.transfer.source import export, find_weights, source_run
from metastep.trees import map_tree

SHOW_EVERY, LOOK_EVERY = 20, 50  # iterations between two updates of the progress line, and two looks for NaN

Sums = dict[str, Tensor]


@dataclass
class Trained:
    """How far a run is: with the state and the sums of the epoch, all that a checkpoint keeps."""

    epoch: int = 0  # that are done
    batch: int = 0  # of the next one that are done too
    seconds: float = 0.0  # of training, without judging
    best: float | None = None  # validation accuracy
    best_epoch: int = 0  # the first one that reached it, counted from 1
    test: float | None = None  # accuracy on test pictures after that epoch: what is reported


class Loop(NamedTuple):
    """What stays the same all through a run"""

    config: TransferConfig
    parts: Parts
    record: Record
    stop: Stop

    def step(self, at: Trained) -> int:
        return at.epoch * len(self.parts.train) + at.batch


QUIETLY: AbstractContextManager[Progress] = nullcontext(silent)


def train(
    config: TransferConfig,
    folder: Path,
    data: Path | None = None,
    reading: AbstractContextManager[Progress] = QUIETLY,
) -> Trained:
    """A new run in `folder`, which must be empty or not there; `data` is the directory that data sets are in.

    A source that has no weights is trained first, as a run of its own in `folder`/source.
    """
    with reading as progress:
        splits = read_data(config, data, progress)
    weights = find_weights(config.source.weights, data) if config.source.weights and needs_source(config) else None
    if weights or not needs_source(config):
        parts = prepare(config, splits, weights)  # before there is a folder: what cannot be trained leaves none
        return _train(Run.create(folder, config), config, parts)
    run = Run.create(folder, config)
    return _train_after_source(run, config, splits, data)


def resume(
    folder: Path, data: Path | None = None, source_net: str | None = None, target_net: str | None = None
) -> Trained:
    """Go on from the last checkpoint; nets of the user's own are named again, and not imported otherwise."""
    run = Run.open(folder)
    config = run.config(TransferConfig)
    config = trusted(config, target=target_net, **({"source": source_net} if needs_source(config) else {}))
    splits = read_data(config, data)
    if needs_source(config) and not config.source.weights:
        return _train_after_source(run, config, splits, data)
    weights = find_weights(config.source.weights or "", data) if needs_source(config) else None
    return _train(run, config, prepare(config, splits, weights))


def needs_source(config: TransferConfig) -> bool:
    return config.method.name != "scratch"


def read_data(config: TransferConfig, data: Path | None, progress: Progress = silent) -> LabelledSplits:
    return load_labelled(config.data.name, data, config.data.size, progress, per_class=config.data.per_class)


def _train_after_source(run: Run, config: TransferConfig, splits: LabelledSplits, data: Path | None) -> Trained:
    place = run.folder / "source"
    started = (place / "config.json").is_file()
    own = source_run(config)
    trained = resume(place, data, target_net=config.source.net) if started else train(own, place, data)
    if trained.epoch < own.epochs:  # it was asked to stop
        return Trained()
    return _train(run, config, prepare(config, splits, find_weights(str(place), None)))


def _train(run: Run, config: TransferConfig, parts: Parts) -> Trained:
    with run.lock(), stop_on_signals() as stop:
        saved = run.load() if run.last.is_file() else None
        state, sums, at = restored(saved, parts, run) if saved else (parts.initial, {}, Trained())
        done = at.epoch * len(parts.train) + at.batch
        with recording(run, done if saved else None, config.epochs * len(parts.train)) as record:
            loop = Loop(config, parts, record, stop)
            record.note(done, "environment", **environment(parts.train.data.images.device))
            while at.epoch < config.epochs and not stop.requested:
                state, sums = run_epoch(loop, state, sums, at)
                if at.batch == len(parts.train):
                    finish_epoch(loop, state, sums, at)
                    sums = {}
                else:
                    require_finite(loop, state, sums, at)
                    record.save(loop.step(at), training_state(state, sums, at))
            record.note(loop.step(at), "engine", path=parts.step.path)  # known only when it was used
        if at.epoch == config.epochs:
            export_best(run, parts)
    return at


def environment(device: torch.device) -> dict[str, str]:
    """Where this part of the run was made, for whoever reads its times"""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return {"device": name, "torch": torch.__version__, "python": platform.python_version()}


def run_epoch(loop: Loop, state: TransferState, sums: Sums, at: Trained) -> tuple[TransferState, Sums]:
    """To the end of the epoch, or to where a stop was asked for"""
    config, parts = loop.config, loop.parts
    began, device = time.perf_counter(), parts.train.data.images.device
    lr = torch.tensor(config.inner.rate(at.epoch, config.epochs), dtype=parts.dtype, device=device)
    noisy = draws_noise(parts.net)
    looks: list[tuple[int, Tensor]] = []
    while at.batch < len(parts.train):
        k = loop.step(at)
        if noisy:
            seed_noise(config.seed, k, 0)
        x, y = parts.train.batch(at.epoch, at.batch)
        looking = parts.looking if parts.looking and k % config.gradient_difference == 0 else None
        state, metrics = (looking or parts.step)(state, (x.to(parts.dtype, memory_format=parts.layout), y), lr)
        if looking:
            looks.append((k + 1, metrics.pop("gradient_difference").clone()))
        sums = added(sums, metrics, len(y))
        at.batch += 1
        if at.batch % SHOW_EVERY == 0:
            loop.record.show(k + 1, epoch=at.epoch + 1, loss=sums["loss"] / sums["pictures"])
        if at.batch % LOOK_EVERY == 0:
            require_finite(loop, None, sums, at)
        if loop.stop.requested:
            break
    for step, difference in looks:
        epoch = step / len(parts.train)
        loop.record.row(step, "gradient_difference", epoch=epoch, gradient_difference=float(difference))
    float(sums["loss"])  # waits for the device, so that the time is that of the work
    at.seconds += time.perf_counter() - began
    return state, sums


def added(sums: Sums, metrics: dict[str, Tensor], pictures: int) -> Sums:
    """Means over batches become sums over pictures; `correct` is one already"""
    new = {name: value.double() * (1 if name == "correct" else pictures) for name, value in metrics.items()}
    new["pictures"] = torch.full_like(new["loss"], pictures)
    return map_tree(torch.add, sums, new) if sums else new


def finish_epoch(loop: Loop, state: TransferState, sums: Sums, at: Trained) -> None:
    """Judge, write down, keep"""
    require_finite(loop, state, sums, at)
    parts, record, step = loop.parts, loop.record, loop.step(at)
    rate = loop.config.inner.rate(at.epoch, loop.config.epochs)
    at.epoch, at.batch = at.epoch + 1, 0
    means: dict[str, Any] = {name: (value / sums["pictures"]).tolist() for name, value in sums.items()}
    shown = {"epoch": at.epoch, "loss": means["loss"], "accuracy": means["correct"]}
    others = {ours: means[theirs] for theirs, ours in OTHER_METRICS.items() if theirs in means}
    record.row(step, "train", **shown, **others, lr=rate, seconds=at.seconds)
    if "where" in means:
        record.row(step, "weights", epoch=at.epoch, **weight_row(parts, means))

    val, test = (judge(parts.net, *_judged(state), part, parts.dtype) for part in (parts.val, parts.test))
    accuracy, tested = float(val.accuracy), float(test.accuracy)
    record.row(
        step, "validation", epoch=at.epoch, validation_accuracy=accuracy, validation_loss=float(val.loss),
        test_accuracy=tested, test_loss=float(test.loss), seconds=at.seconds,
    )  # fmt: skip
    record.show(step, epoch=at.epoch, loss=means["loss"], validation=accuracy)
    improved = at.best is None or accuracy > at.best  # the first best counts
    if improved:
        at.best, at.best_epoch, at.test = accuracy, at.epoch, tested
    last = at.epoch == loop.config.epochs
    if improved or last or loop.stop.requested or at.epoch % loop.config.checkpoint_every == 0:
        record.save(step, training_state(state, {}, at), best=improved)


OTHER_METRICS = {"cross_entropy": "cross_entropy", "transfer": "transfer_loss", "outer": "outer_loss"}


def _judged(state: TransferState) -> tuple[Any, Any]:
    return state.target.params["target"], state.buffers


def weight_row(parts: Parts, means: dict[str, Any]) -> dict[str, float]:
    """λ and the sharpness of w for each pair, by name"""
    return {
        f"{which}_{m}_{n}": value
        for which in ("where", "what")
        for (m, n), value in zip(parts.pairs, means[which], strict=True)
    }


def require_finite(loop: Loop, state: TransferState | None, sums: Sums, at: Trained) -> None:
    """`state`: looked at too, before it is kept"""
    bad = [name for name, value in sums.items() if not is_finite(value)] if not is_finite(sums) else []
    if not bad and (state is None or is_finite(state)):
        return
    place = f"epoch {at.epoch + 1}, by batch {at.batch} of {len(loop.parts.train)}"
    what = f"{', '.join(sorted(bad))} left" if bad else "the state of the optimizers left"
    inner, meta = loop.config.inner.lr, loop.config.meta.lr
    advice = f"Lower the rate of the target net (--inner-lr, now {inner:g})"
    advice += f" or that of the meta-networks (--meta-lr, now {meta:g})" if loop.config.learns_weights else ""
    raise NonFiniteError(f"{place}: {what} the finite numbers. {advice}. {loop.record.kept()}")


def training_state(state: TransferState, sums: Sums, at: Trained) -> dict[str, Any]:
    return {"state": to_tree(state), "sums": sums, "trained": asdict(at)}


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
