"""Few-shot meta-training, in the open: draw tasks, estimate the meta-gradient, step, measure, keep.

All that an iteration depends on is in the checkpoint, or is a function of (seed, iteration, task): a run that was
interrupted goes on as if it had not been, bit for bit on a CPU.
"""

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from metastep.data.progress import Progress, silent
from metastep.errors import NonFiniteError
from metastep.estimators import Estimate, Estimator
from metastep.fewshot.building import trusted
from metastep.fewshot.config import OuterConfig, TrainConfig
from metastep.fewshot.distributed import ALONE, Ranks
from metastep.fewshot.learner import Learner
from metastep.fewshot.parts import Parts, prepare
from metastep.fewshot.record import recording
from metastep.fewshot.sampling import fitted, read_images, seed_noise
from metastep.fewshot.validation import Judged, judge, mean
from metastep.runs import CheckpointError, Run, optimizer_tree, restore_optimizer, stop_on_signals
from metastep.tasks import require_finite, write_grads
from metastep.trees import Tree, map_tree, norm, scale
from metastep.windows import Task


@dataclass
class Trained:
    """How far a run is: with the learner and the optimizer, all that a checkpoint keeps."""

    iterations: int = 0
    seconds: float = 0.0
    best: float | None = None  # validation accuracy


class Step(NamedTuple):
    """What one iteration found, over all ranks"""

    grad: Tree
    loss: Tensor
    accuracy: Tensor
    stop: Tensor  # above 0: a rank was asked to


QUIETLY: AbstractContextManager[Progress] = nullcontext(silent)


def train(
    config: TrainConfig,
    folder: Path,
    data: Path | None = None,
    ranks: Ranks = ALONE,
    reading: AbstractContextManager[Progress] = QUIETLY,
) -> Trained:
    """A new run in `folder`, which must be empty or not there; `data` is the directory that data sets are in.

    reading: shows how far reading the data is, and is closed before training shows itself.
    """
    with reading as progress:
        images, validation = read_images(config, data, progress)
    config = fitted(config, images)
    parts = prepare(config, images, validation, ranks)  # before there is a folder: what cannot be trained leaves none
    run = ranks.from_first(lambda: Run.create(folder, config))
    return _train(run, config, parts, ranks)


def resume(folder: Path, data: Path | None = None, net: str | None = None, ranks: Ranks = ALONE) -> Trained:
    """Go on from the last checkpoint; `net` names a net of the user's own again, which is not imported otherwise."""
    run, config = ranks.from_first(lambda: (Run.open(folder), Run.open(folder).config(TrainConfig)))
    config = trusted(config, net)
    return _train(run, config, prepare(config, *read_images(config, data), ranks), ranks)


def _train(run: Run, config: TrainConfig, parts: Parts, ranks: Ranks) -> Trained:
    learner, optimizer, estimator, estimate, draw, draw_validation = parts
    first, tasks = ranks.share(config.outer.tasks)
    every, total = config.validation.every, config.outer.iterations

    with run.lock() if ranks.is_first else nullcontext(), stop_on_signals() as stop:
        saved = ranks.from_first(lambda: run.load() if run.last.is_file() else None)
        at = restore(saved, learner, optimizer, run) if saved else Trained()
        with recording(run, ranks, at.iterations if saved else None, total) as record:
            stopping = False
            while at.iterations < total and not stopping:
                k, began = at.iterations, time.perf_counter()
                seed_noise(config.seed, k, first)
                batch = draw(k, tasks, first)
                local = estimate(learner.meta, batch)
                step = ranks.total(part_of_step(local, tasks / config.outer.tasks, stop.requested))
                size = norm(step.grad)
                if not torch.isfinite(size + step.loss):
                    reason = why(estimator, learner.meta, batch, local)
                    raise NonFiniteError(f"iteration {k + 1}: {reason} {record.kept()}")
                update(optimizer, config.outer, k, learner.meta, step.grad)
                stopping = bool(step.stop > 0)
                at.iterations, at.seconds = k + 1, at.seconds + time.perf_counter() - began

                shown = {"loss": float(step.loss), "accuracy": float(step.accuracy)}
                record.show(k + 1, **shown)
                if (k + 1) % config.log_every == 0:
                    record.row(k + 1, "train", **shown, gradient_norm=float(size), seconds=at.seconds)
                improved = False
                if draw_validation and (k + 1) % every == 0:
                    row = validation_row(judge(learner, draw_validation, config.validation.episodes, ranks=ranks))
                    record.row(k + 1, "validation", **row, seconds=at.seconds)
                    improved = at.best is None or row["validation_accuracy"] > at.best
                    at.best = row["validation_accuracy"] if improved else at.best
                if improved or stopping or (k + 1) % config.checkpoint_every == 0 or k + 1 == total:
                    record.save(k + 1, training_state(learner, optimizer, at), best=improved)
    return at


def part_of_step(local: Estimate, weight: float, stop: bool) -> Step:
    """What this rank adds to the sum over ranks; `weight` is its share of the tasks"""
    grad, loss, accuracy = scale(weight, (local.grad, local.loss, local.metrics["accuracy"].mean()))
    return Step(grad, loss, accuracy, loss.new_tensor(float(stop)))


def validation_row(result: Judged) -> dict[str, float]:
    """Named apart from those of training, which TensorBoard would draw as one curve"""
    loss, score = mean(result.loss), mean(result.accuracy)
    return {"validation_loss": loss.mean, "validation_accuracy": score.mean, "validation_interval": score.interval}


def why(estimator: Estimator, meta: Tree, batch: Task, local: Estimate) -> str:
    """Where a meta-step left the finite numbers"""
    try:
        require_finite(estimator, meta, batch, local)
    except NonFiniteError as error:
        return str(error)
    return "the meta-gradient is not finite, by the tasks of another rank or by its length. Lower the rates."


def update(optimizer: Optimizer, outer: OuterConfig, k: int, meta: Tree, grad: Tree) -> None:
    bound = outer.clip
    write_grads(meta, grad if bound is None else map_tree(lambda g: g.clamp(-bound, bound), grad))
    for group in optimizer.param_groups:
        group["lr"] = outer.lr * (1 - k / outer.iterations) if outer.schedule == "linear" else outer.lr
    optimizer.step()


def training_state(learner: Learner, optimizer: Optimizer, at: Trained) -> dict[str, Any]:
    if not torch.isfinite(norm(learner.meta)):
        raise NonFiniteError(
            f"iteration {at.iterations}: the outer optimizer left the finite numbers; nothing is saved. Lower its rate."
        )
    return learner.tree() | {"optimizer": optimizer_tree(optimizer), "trained": asdict(at)}


def restore(saved: dict[str, Any], learner: Learner, optimizer: Optimizer, run: Run) -> Trained:
    learner.restore(saved, run.last)
    try:
        restore_optimizer(optimizer, saved["optimizer"])
        return Trained(**saved["trained"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{str(run.last)!r}: is no checkpoint of few-shot training ({error}).") from error
