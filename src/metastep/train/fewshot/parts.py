"""What a training loop works with, built of its configuration."""

from typing import NamedTuple

import torch
from torch.optim import SGD, Adam, Optimizer

from metastep.core.trees import Tree, tree_leaves
from metastep.data.images import ImageSet
from metastep.errors import MetastepError, how_many
from metastep.step.paths import MetaGradient, fastest
from metastep.step.ranks import Ranks
from metastep.train.device import prepare_device
from metastep.train.fewshot.building import asked_of, build
from metastep.train.fewshot.config import OuterConfig, TrainConfig
from metastep.train.fewshot.learner import Learner
from metastep.train.fewshot.sampling import VALIDATION_SEED, Sampler


class Parts(NamedTuple):
    learner: Learner
    optimizer: Optimizer
    gradient: MetaGradient
    draw: Sampler
    draw_validation: Sampler | None


def prepare(config: TrainConfig, images: ImageSet, validation: ImageSet | None, ranks: Ranks) -> Parts:
    device = prepare_device(config.device, config.precision, config.threads, ranks.local)
    for number in (config.outer.tasks, config.validation.episodes):
        ranks.share(number)  # says at once if there are too few
    learner = Learner.fresh(config).to(device)
    dtype = tree_leaves(learner.meta)[0].dtype
    return Parts(
        learner,
        build_optimizer(config.outer, learner.meta),
        gradient_of(config, learner),
        Sampler.of(images, config.train_episodes, config.seed, device, dtype),
        validation and _validation_sampler(config, validation, device, dtype),
    )


def gradient_of(config: TrainConfig, learner: Learner) -> MetaGradient:
    """Nobody looks whether it is finite: the loop does, when all ranks are together"""
    estimator = build(config, learner.net).estimator
    return fastest(asked_of(config, learner.net), estimator, config.chunk_size)


def _validation_sampler(config: TrainConfig, images: ImageSet, device: torch.device, dtype: torch.dtype) -> Sampler:
    try:
        return Sampler.of(images, config.test_episodes, VALIDATION_SEED, device, dtype)
    except MetastepError as error:
        raise MetastepError(
            f"validation, on {how_many(len(images.names), 'held-out class', 'held-out classes')}: {error} "
            "Or train without validation: --validation-every 0."
        ) from None


def build_optimizer(outer: OuterConfig, meta: Tree) -> Optimizer:
    if outer.optimizer == "sgd":
        return SGD(tree_leaves(meta), outer.lr)
    return Adam(tree_leaves(meta), outer.lr, eps=1e-8 if outer.eps is None else outer.eps)
