"""Few-shot learning as a job of the training loop: what an iteration is, and what is measured, judged and kept.

Training may start from a learner, in place of a new net: where a user's own classes are few, it knows more.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, SupportsFloat

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from metastep.core.estimators import Estimate
from metastep.core.problems import params_of
from metastep.core.random import seed_noise
from metastep.core.trees import Tree, norm, tree_leaves
from metastep.data.errors import Progress, silent
from metastep.data.pictures import Pictures
from metastep.errors import MetastepError, NonFiniteError, how_many
from metastep.step.beginning import Beginning
from metastep.step.compiled.paying import decided
from metastep.step.gradient import MetaGradient
from metastep.step.ranks import ALONE, Ranks
from metastep.step.update import MetaStep
from metastep.train.checkpoints import optimizer_tree, restore_optimizer
from metastep.train.config import FewShot, Net, Outer
from metastep.train.device import prepare_device
from metastep.train.fewshot.evaluate import VALIDATION_SEED, Sampler, fitted, judge, read_images
from metastep.train.fewshot.learner import Learner, gradient_of
from metastep.train.io import CheckpointError
from metastep.train.loop import Plan, Row
from metastep.train.presets import find_learner, shipped
from metastep.train.remembered import remembered, trusted
from metastep.train.run import Run


def plan(
    config: FewShot,
    folder: Path,
    root: Path | None,
    ranks: Ranks,
    progress: Progress = silent,
    nets: Mapping[str, str] | None = None,
) -> Plan:
    """Find all that a run needs. `nets` are those that a user names again for a resumed run."""
    runs = config if nets is None else trusted(config, nets)
    images, validation = read_images(runs, root, progress)
    if nets is None:
        found = replace(config, data=remembered(config.data, root), start=start_placed(config.start))
        runs = config = fitted(found, images)
    job = prepare(runs, images, validation, ranks)
    if nets is None and config.compile is None:
        config = job.decide()
    if not Run(folder).last.is_file():
        begin_from_start(job.learner, folder)
    return Plan(folder, config, lambda: job, is_new=nets is None)


@dataclass
class FewShotJob:
    """An iteration draws tasks and moves θ by their meta-gradient."""

    config: FewShot
    learner: Learner
    optimizer: Optimizer
    gradient: MetaGradient
    draw: Sampler
    draw_validation: Sampler | None
    ranks: Ranks = ALONE

    step: MetaStep = field(init=False)
    found: Estimate = field(init=False)

    epoch, notice = 1, ""
    notes: Mapping[str, dict[str, str]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        config = self.config
        self.total, self.log_every = config.iterations, config.log_every
        self.validate_every = config.validation.every if self.draw_validation else 0
        self.device = self.learner.device
        self._first, self._tasks = self.ranks.share(config.tasks)

    def decide(self) -> FewShot:
        """Return the configuration with the engine of a new run. A resumed one takes it from there."""
        draw, meta = partial(self.draw, 0, self._tasks, self._first), self.learner.meta
        compile, self.notice = self.ranks.from_first(lambda: decided(self.gradient, meta, draw, self.total))
        if compile:
            self.config = replace(self.config, compile=True)
            self.gradient = replace(self.gradient, compile=True)
        return self.config

    def restore(self, tree: dict[str, Any], path: Path) -> None:
        self.learner.restore(tree, path)
        try:
            restore_optimizer(self.optimizer, tree["optimizer"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{str(path)!r}: is no checkpoint of few-shot training ({error}).") from error

    def begin(self, done: int, folder: Path | None = None) -> None:
        outer = self.config.outer
        self.step = MetaStep(
            self.gradient,
            self.learner.meta,
            self.optimizer,
            clip=outer.clip,
            clip_value=outer.clip_value,
            warmup=outer.warmup,
            ramp=outer.ramp,
            scheduler=scheduler(self.config, self.optimizer, done),
            draw=partial(self.draw, tasks=self._tasks, first=self._first),
            ranks=self.ranks,
            updates=done,
        )
        self.queued = self.step.queued
        if folder and self.config.start and not done and self.ranks.is_first:
            self.learner.save(folder / KEPT)

    @property
    def path(self) -> str:
        return self.step.path

    def advance(self, k: int) -> None:
        seed_noise(self.config.seed, k, self._first)
        self.found = self.step()

    def look(self, done: int) -> None:
        self.step.look()

    def shown(self) -> Mapping[str, SupportsFloat]:
        return {"loss": self.found.loss, "accuracy": self.found.metrics["accuracy"].mean()}

    def measured(self, done: int) -> Iterator[Row]:
        if done % self.log_every:
            return
        accuracy = self.ranks.mean(self.found.metrics["accuracy"].mean(), self._tasks)
        length = norm(params_of(self.found.grad))  # of θ alone: rates, or a memory, have units of their own
        row = {"loss": self.found.loss, "accuracy": accuracy, "gradient_norm": length}
        if self.found.growth is not None:
            growths = self.found.growth.new_zeros(self.config.tasks)  # of the tasks of all ranks
            growths[self._first : self._first + self._tasks] = self.found.growth
            row["growth"] = self.ranks.total(growths).median()
        yield Row(done, "train", {name: float(value) for name, value in row.items()})

    def judged(self, done: int) -> dict[str, float]:
        assert self.draw_validation
        self.step.settle()
        episodes = self.config.validation.episodes
        return judge(self.learner, self.draw_validation, episodes, ranks=self.ranks).row("validation")

    def state(self, done: int) -> dict[str, Any]:
        self.step.settle()
        if not torch.isfinite(norm(self.learner.meta)):
            raise NonFiniteError(f"iteration {done}: the outer optimizer left the finite numbers. Lower its rate.")
        return self.learner.tree() | {"optimizer": optimizer_tree(self.optimizer)}

    def finish(self, run: Run) -> None:
        """Nothing: a run's checkpoints are its learners."""


def prepare(config: FewShot, images: Pictures, validation: Pictures | None, ranks: Ranks) -> FewShotJob:
    """Build a job from its configuration and its pictures."""
    device = prepare_device(config.device, config.precision, config.threads, ranks.local)
    for number in (config.tasks, config.validation.episodes):
        ranks.share(number)  # says at once if there are too few
    learner = Learner.fresh(config).to(device)
    dtype, gradient = tree_leaves(learner.meta)[0].dtype, gradient_of(config, learner.net)
    gradient = replace(gradient, compile=bool(config.compile))
    Beginning(gradient, config.outer.warmup, config.outer.ramp, device)  # says at once if there is none
    return FewShotJob(
        config,
        learner,
        build_optimizer(config.outer, learner.meta),
        gradient,
        Sampler.of(images, config.train_episodes, config.seed, device, dtype),
        validation and _validation_sampler(config, validation, device, dtype),
        ranks,
    )


def _validation_sampler(config: FewShot, images: Pictures, device: torch.device, dtype: torch.dtype) -> Sampler:
    try:
        return Sampler.of(images, config.test_episodes, VALIDATION_SEED, device, dtype)
    except MetastepError as error:
        raise MetastepError(
            f"validation, on {how_many(len(images.names), 'held-out class', 'held-out classes')}: {error} "
            "Or train without validation: validation.every=0."
        ) from None


def build_optimizer(outer: Outer, meta: Tree) -> Optimizer:
    """Return the optimizer of θ."""
    if outer.optimizer == "sgd":
        return SGD(tree_leaves(meta), outer.lr, weight_decay=outer.weight_decay)
    kind: type[Adam] = {"adam": Adam, "adamw": AdamW}[outer.optimizer]
    eps = 1e-8 if outer.eps is None else outer.eps
    return kind(tree_leaves(meta), outer.lr, eps=eps, weight_decay=outer.weight_decay)


def scheduler(config: FewShot, optimizer: Optimizer, done: int) -> LambdaLR | None:
    """Return the schedule of the outer rate after so many iterations."""
    if config.outer.schedule == "constant":
        return None
    for group in optimizer.param_groups:
        group["initial_lr"] = config.outer.lr  # PyTorch wants it where a schedule does not begin at its start
    return LambdaLR(optimizer, lambda k: 1 - k / config.iterations, last_epoch=done - 1)


# ---- starting from a learner


ITERATIONS = 1_000  # unless somebody says otherwise: what knows such pictures already needs few
KEPT = "start.safetensors"  # in the folder of a run: θ before its first iteration, where that came from a learner
LOOKS = 10  # validations on the way


def as_trained(start: str, net: str | None) -> FewShot:
    """The configuration that the learner was trained with, for other pictures, on whatever machine this is"""
    config, here = Learner.load(start, net=net).config, FewShot()
    every = ITERATIONS // LOOKS
    return replace(
        config,
        data=replace(config.data, fingerprint=None),
        iterations=ITERATIONS,
        validation=replace(config.validation, every=min(config.validation.every, every)),
        checkpoint_seconds=here.checkpoint_seconds,
        start=None,
        precision=here.precision,
        device=here.device,
        threads=here.threads,
        chunk_size=None,
    )


def start_placed(start: str | None) -> str | None:
    """Return the name by which a learner is found from everywhere; one that comes with metastep is."""
    return start if start is None or start in shipped() else str(find_learner(start).resolve())


def begin_from_start(learner: Learner, folder: Path) -> None:
    """Give a run in `folder` its first θ, if its configuration names a learner to start from.

    Learned rates, and an optimizer's memory, begin anew. What the folder has kept of its start counts: the learner
    itself may be trained on later, or moved.
    """
    config, kept = learner.config, folder / KEPT
    if config.start is None:
        return
    typed = config.net.name if config.net.is_users else None
    if kept.is_file():
        learner.restore(Learner.load(kept, net=typed).tree(), kept)
        return
    start = Learner.load(config.start, net=typed)
    require_fitting(config.start, start.config.net, config.net, config.data.name)
    tree = start.changed(ways=config.data.ways).tree()
    theta = params_of(tree["meta"])
    tree["meta"] = theta if params_of(learner.meta) is learner.meta else learner.meta | {"params": theta}
    learner.restore(tree, Path(config.start))


def require_fitting(start: str, theirs: Net, ours: Net, data: str) -> None:
    if (theirs.channels, theirs.size) != (ours.channels, ours.size):
        raise MetastepError(
            f"start = {start}: takes pictures of {theirs.shape}, and those of {data!r} are {ours.shape}. Start from a "
            "learner of such pictures, or leave start out."
        )
    if (theirs.name, theirs.options.get("filters")) != (ours.name, ours.options.get("filters")):
        raise MetastepError(
            f"start = {start}: is a {theirs.described}, and this run is to train a {ours.described}. Leave net "
            "out, and begin with the learner instead of a preset: it brings its own."
        )
