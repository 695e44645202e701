"""What a training loop works with, built of its configuration."""

from typing import NamedTuple

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from metastep.core.trees import Tree, tree_leaves
from metastep.data.pictures import Pictures
from metastep.errors import MetastepError, how_many
from metastep.step.gradient import MetaGradient
from metastep.step.ranks import Ranks
from metastep.step.update import MetaStep
from metastep.train.config import FewShot, Outer
from metastep.train.device import prepare_device
from metastep.train.fewshot.building import gradient_of
from metastep.train.fewshot.learner import Learner
from metastep.train.fewshot.sampling import VALIDATION_SEED, Sampler


class Parts(NamedTuple):
    learner: Learner
    optimizer: Optimizer
    gradient: MetaGradient
    draw: Sampler
    draw_validation: Sampler | None


def prepare(config: FewShot, images: Pictures, validation: Pictures | None, ranks: Ranks) -> Parts:
    device = prepare_device(config.device, config.precision, config.threads, ranks.local)
    for number in (config.tasks, config.validation.episodes):
        ranks.share(number)  # says at once if there are too few
    learner = Learner.fresh(config).to(device)
    dtype = tree_leaves(learner.meta)[0].dtype
    return Parts(
        learner,
        build_optimizer(config.outer, learner.meta),
        gradient_of(config, learner.net),
        Sampler.of(images, config.train_episodes, config.seed, device, dtype),
        validation and _validation_sampler(config, validation, device, dtype),
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
    if outer.optimizer == "sgd":
        return SGD(tree_leaves(meta), outer.lr, weight_decay=outer.weight_decay)
    kind: type[Adam] = {"adam": Adam, "adamw": AdamW}[outer.optimizer]
    eps = 1e-8 if outer.eps is None else outer.eps
    return kind(tree_leaves(meta), outer.lr, eps=eps, weight_decay=outer.weight_decay)


def meta_step(config: FewShot, parts: Parts, ranks: Ranks, done: int) -> MetaStep:
    """Return the iteration of a run that has made `done` of them."""
    first, tasks = ranks.share(config.tasks)
    return MetaStep(
        parts.gradient,
        parts.learner.meta,
        parts.optimizer,
        clip=config.outer.clip,
        clip_value=config.outer.clip_value,
        scheduler=scheduler(config, parts.optimizer, done),
        draw=lambda k: parts.draw(k, tasks, first),
        ranks=ranks,
        updates=done,
    )


def scheduler(config: FewShot, optimizer: Optimizer, done: int) -> LambdaLR | None:
    if config.outer.schedule == "constant":
        return None
    for group in optimizer.param_groups:
        group["initial_lr"] = config.outer.lr  # PyTorch wants it where a schedule does not begin at its start
    return LambdaLR(optimizer, lambda k: 1 - k / config.iterations, last_epoch=done - 1)
