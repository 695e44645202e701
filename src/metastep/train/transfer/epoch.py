"""One epoch of transfer training: its iterations, and what is measured, written down and kept when it is over.

Metrics are added up on the device, and read when the epoch is over; only the progress line, and a look whether all is
finite, wait for it now and then, and both after a pause: beside others, the device is through with it by then.
"""

import time
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metastep.core.modules import draws_noise
from metastep.core.random import seed_noise
from metastep.core.trees import map_tree
from metastep.errors import NonFiniteError
from metastep.train.config import Transfer
from metastep.train.record import Record
from metastep.train.stop import Stop
from metastep.train.transfer.building import Parts, choose_device
from metastep.train.transfer.checkpoint import Keeper, is_finite, to_tree
from metastep.train.transfer.evaluate import judge
from metastep.train.transfer.method import TransferState
from metastep.train.turns import Turns, others_go_on

QUEUED = 10  # iterations between two pauses: the device makes them while others have their turn
LOOK_EVERY = 5 * QUEUED  # iterations between two looks for NaN

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
    beside: int = 0  # the most other runs that were under way in this process, and made its seconds longer


@dataclass
class StoppedBefore(Trained):
    """A run that has not begun, since it was stopped while its source was trained"""

    source: Trained = field(default_factory=Trained)


class Loop(NamedTuple):
    """What stays the same all through a run"""

    config: Transfer
    parts: Parts
    record: Record
    keeper: Keeper
    stop: Stop

    def step(self, at: Trained) -> int:
        return at.epoch * len(self.parts.train) + at.batch

    def pause(self, at: Trained) -> Turns[None]:
        return others_go_on(at, partial(choose_device, self.config))


def run_epoch(loop: Loop, state: TransferState, sums: Sums, at: Trained) -> Turns[tuple[TransferState, Sums]]:
    """To the end of the epoch, or to where a stop was asked for"""
    config, parts = loop.config, loop.parts
    began, device = time.perf_counter(), parts.train.data.images.device
    lr = torch.tensor(config.rate(at.epoch), dtype=parts.dtype, device=device)
    noisy = draws_noise(parts.net)
    looks: list[tuple[int, Tensor]] = []
    while at.batch < len(parts.train):
        k = loop.step(at)
        if noisy:
            seed_noise(config.seed, k)
        x, y = parts.train.batch(at.epoch, at.batch)
        looking = parts.looking if parts.looking and k % config.gradient_difference == 0 else None
        state, metrics = (looking or parts.step)(state, (x.to(parts.dtype, memory_format=parts.layout), y), lr)
        if looking:
            looks.append((k + 1, metrics.pop("gradient_difference").clone()))
        sums = added(sums, metrics, len(y))
        at.batch += 1
        if at.batch % QUEUED == 0 or at.batch == len(parts.train) or loop.stop.requested:
            yield from loop.pause(at)
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


def finish_epoch(loop: Loop, state: TransferState, sums: Sums, at: Trained) -> Turns[None]:
    """Judge, write down, keep"""
    require_finite(loop, state, sums, at)
    parts, record, step = loop.parts, loop.record, loop.step(at)
    rate = loop.config.rate(at.epoch)
    at.epoch, at.batch = at.epoch + 1, 0
    means: dict[str, Any] = {name: (value / sums["pictures"]).tolist() for name, value in sums.items()}
    shown = {"epoch": at.epoch, "loss": means["loss"], "accuracy": means["correct"]}
    others = {ours: means[theirs] for theirs, ours in OTHER_METRICS.items() if theirs in means}
    record.row(step, "train", **shown, **others, lr=rate, seconds=at.seconds)
    if "where" in means:
        record.row(step, "weights", epoch=at.epoch, **weight_row(parts, means))

    val, test = (judge(parts.net, *_judged(state), part, parts.dtype) for part in (parts.val, parts.test))
    yield from loop.pause(at)
    accuracy, tested = float(val.accuracy), float(test.accuracy)
    record.row(
        step, "validation", epoch=at.epoch, validation_accuracy=accuracy, validation_loss=float(val.loss),
        test_accuracy=tested, test_loss=float(test.loss), seconds=at.seconds,
    )  # fmt: skip
    record.show(step, epoch=at.epoch, loss=means["loss"], validation=accuracy)
    improved = at.best is None or accuracy > at.best  # the first best counts
    if improved:
        at.best, at.best_epoch, at.test = accuracy, at.epoch, tested
        loop.keeper.remember_best(training_state(state, {}, at))
    if loop.keeper.due or at.epoch == loop.config.epochs or loop.stop.requested:
        loop.keeper.write(step, training_state(state, {}, at))


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
    inner, meta = loop.config.inner.lr, loop.config.outer.lr
    advice = f"Lower the rate of the target net (inner.lr, now {inner:g})"
    advice += f" or that of the meta-networks (outer.lr, now {meta:g})" if loop.config.learns_weights else ""
    raise NonFiniteError(f"{place}: {what} the finite numbers. {advice}. {loop.record.kept()}")


def training_state(state: TransferState, sums: Sums, at: Trained) -> dict[str, Any]:
    return {"state": to_tree(state), "sums": sums, "trained": asdict(at)}
