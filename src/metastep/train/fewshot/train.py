"""Few-shot meta-training, in the open: draw tasks, estimate the meta-gradient, step, measure, keep.

All that an iteration depends on is in the checkpoint, or is a function of (seed, iteration, task): a run that was
interrupted goes on as if it had not been, bit for bit on a CPU. It pauses where it would wait for the device: beside
others, too, it ends as it would have alone.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from metastep.core.estimators import Estimate
from metastep.core.problems import params_of
from metastep.core.random import seed_noise
from metastep.core.trees import norm
from metastep.data.progress import QUIETLY, Progress
from metastep.errors import NonFiniteError
from metastep.step.ranks import ALONE, Ranks
from metastep.train.config import FewShot
from metastep.train.device import environment, prepare_device
from metastep.train.errors import CheckpointError
from metastep.train.fewshot import beginning
from metastep.train.fewshot.building import trusted
from metastep.train.fewshot.judging import Judged, judge
from metastep.train.fewshot.learner import Learner
from metastep.train.fewshot.parts import Parts, meta_step, prepare
from metastep.train.fewshot.reconfiguring import reconfigure, reconfigured
from metastep.train.fewshot.record import recording
from metastep.train.fewshot.sampling import fitted, read_images, remembered
from metastep.train.fewshot.scores import mean
from metastep.train.record import Record
from metastep.train.run import Run
from metastep.train.states import optimizer_tree, restore_optimizer
from metastep.train.stop import Stop, stop_on_signals
from metastep.train.turns import Turns, others_go_on, run_alone


@dataclass
class Trained:
    """How far a run is: with the learner and the optimizer, all that a checkpoint keeps."""

    iterations: int = 0
    seconds: float = 0.0
    best: float | None = None  # validation accuracy
    beside: int = 0  # the most other runs that were under way in this process, and made its seconds longer


def train_in_turns(
    config: FewShot,
    folder: Path,
    data: Path | None = None,
    ranks: Ranks = ALONE,
    reading: AbstractContextManager[Progress] = QUIETLY,
) -> Turns[Trained]:
    """A new run in `folder`, which must be empty or not there; `data` is the directory that data sets are in.

    reading: shows how far reading the data is, and is closed before training shows itself.
    """
    with reading as progress:
        images, validation = read_images(config, data, progress)
    config = beginning.remembered(fitted(replace(config, data=remembered(config.data, data)), images))
    parts = prepare(config, images, validation, ranks)  # before there is a folder: what cannot be trained leaves none
    beginning.begin(parts.learner)
    run = ranks.from_first(lambda: Run.create(folder, config))
    return (yield from _train(run, config, parts, ranks))


def resume_in_turns(
    folder: Path,
    data: Path | None = None,
    net: str | None = None,
    ranks: Ranks = ALONE,
    iterations: int | None = None,
    dataset: str | None = None,
) -> Turns[Trained]:
    """Go on from the last checkpoint; `net` names a net of the user's own again, which is not imported otherwise.

    iterations: how many the run is to have made at its end, if not as many as it was started with.
    dataset: where a user's own folder of pictures is, if it was moved; the run remembers it.
    """
    run, config = ranks.from_first(lambda: opened(folder, iterations, dataset, data))
    config = trusted(config, net)
    parts = prepare(config, *read_images(config, data), ranks)
    if iterations is not None or dataset is not None:  # not before: a run that cannot go on is left as it was
        ranks.from_first(lambda: reconfigure(run, iterations, dataset, data))
    if not run.last.is_file():
        beginning.begin_again(parts.learner, folder)
    return (yield from _train(run, config, parts, ranks))


train, resume = run_alone(train_in_turns), run_alone(resume_in_turns)


def opened(folder: Path, iterations: int | None, dataset: str | None, data: Path | None) -> tuple[Run, FewShot]:
    run = Run.open(folder)
    return run, reconfigured(run, iterations, dataset, data)


def _train(run: Run, config: FewShot, parts: Parts, ranks: Ranks) -> Turns[Trained]:
    learner, optimizer, draw_validation = parts.learner, parts.optimizer, parts.draw_validation
    every, total = config.validation.every, config.iterations
    settings = partial(prepare_device, config.device, config.precision, config.threads, ranks.local)

    with run.lock() if ranks.is_first else nullcontext(), stop_on_signals() as stop:
        saved = ranks.from_first(lambda: run.load() if run.last.is_file() else None)
        at = restore(saved, learner, optimizer, run) if saved else Trained()
        step, started = meta_step(config, parts, ranks, at.iterations), at.iterations
        first, tasks = ranks.share(config.tasks)
        with recording(run, ranks, at.iterations if saved else None, total) as record, telling_what_is_kept(record):
            ending = at.iterations == total
            if not ending:
                record.note(at.iterations, "environment", **environment(learner.device))
            if config.start and not saved and ranks.is_first:
                beginning.keep(learner, run.folder)
            while not ending:
                k, began = at.iterations, time.perf_counter()
                seed_noise(config.seed, k, first)
                found = step()
                logging = (k + 1) % config.log_every == 0
                pausing = k + 1 == total or logging or (k + 1) % step.queued == 0
                ending = k + 1 == total
                if pausing:
                    accuracy, stopping = over_ranks(found, stop, ranks, tasks)
                    ending = ending or stopping
                    yield from others_go_on(at, settings)
                if logging:
                    step.look()
                at.iterations, at.seconds = k + 1, at.seconds + time.perf_counter() - began

                if k == started:  # a unit knows only now how it is run
                    record.note(k + 1, "engine", path=step.path)
                    record.say(step.path)
                if pausing:  # beside others, the device is through with it
                    record.show(k + 1, loss=found.loss, accuracy=accuracy)
                if logging:
                    length = norm(params_of(found.grad))  # of θ alone: rates, or a memory, have units of their own
                    measured = {"loss": found.loss, "accuracy": accuracy, "gradient_norm": length}
                    record.row(k + 1, "train", **measured, seconds=at.seconds)
                improved = False
                if draw_validation and (k + 1) % every == 0:
                    step.settle()
                    row = validation_row(judge(learner, draw_validation, config.validation.episodes, ranks=ranks))
                    record.row(k + 1, "validation", **row, seconds=at.seconds)
                    improved = at.best is None or row["validation_accuracy"] > at.best
                    at.best = row["validation_accuracy"] if improved else at.best
                if improved or ending or (pausing and record.due(config.checkpoint_seconds)):
                    step.settle()
                    tree = training_state(learner, optimizer, at)
                    record.save(k + 1, tree, best=tree if improved else None)
    return at


def over_ranks(found: Estimate, stop: Stop, ranks: Ranks, tasks: int) -> tuple[Tensor, bool]:
    """Return the accuracy over all ranks, and whether one of them was asked to stop."""
    accuracy = found.metrics["accuracy"].mean()
    if ranks.count == 1:
        return accuracy, stop.requested
    accuracy, asked = ranks.mean((accuracy, accuracy.new_tensor(float(stop.requested))), tasks)
    return accuracy, bool(asked > 0)


@contextmanager
def telling_what_is_kept(record: Record) -> Iterator[None]:
    try:
        yield
    except NonFiniteError as error:
        raise NonFiniteError(f"{error} {record.kept()}") from None


def validation_row(result: Judged) -> dict[str, float]:
    """Named apart from those of training, which TensorBoard would draw as one curve"""
    loss, score = mean(result.loss[:, -1]), mean(result.accuracy[:, -1])
    return {"validation_loss": loss.mean, "validation_accuracy": score.mean, "validation_interval": score.interval}


def training_state(learner: Learner, optimizer: Optimizer, at: Trained) -> dict[str, Any]:
    if not torch.isfinite(norm(learner.meta)):
        raise NonFiniteError(f"iteration {at.iterations}: the outer optimizer left the finite numbers. Lower its rate.")
    return learner.tree() | {"optimizer": optimizer_tree(optimizer), "trained": asdict(at)}


def restore(saved: dict[str, Any], learner: Learner, optimizer: Optimizer, run: Run) -> Trained:
    learner.restore(saved, run.last)
    try:
        restore_optimizer(optimizer, saved["optimizer"])
        return Trained(**saved["trained"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{str(run.last)!r}: is no checkpoint of few-shot training ({error}).") from error
