"""What is asked of a learner for a report: what its method costs, how its inner gradients change, what it predicts."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from metastep.core.compare import gradient_difference
from metastep.core.counting import counting
from metastep.core.problems import accuracy, params_of
from metastep.core.trees import map_tree, tree_leaves
from metastep.data.episodes import Episodes
from metastep.data.pictures import Pictures
from metastep.data.sheet import panels
from metastep.train.fewshot.building import gradient_of
from metastep.train.fewshot.choices import EVALUATION_SEED
from metastep.train.fewshot.learner import Learner
from metastep.train.fewshot.sampling import Sampler, read_split

SPLIT = "test"
TASKS = 16  # whose inner gradients are followed
MOST = 6  # pictures of a class that are shown, to adapt to and to be named


@dataclass(frozen=True)
class Named:
    """A query with what was said about it"""

    picture: Tensor  # uint8 (channels, size, size)
    said: str
    right: bool
    probability: float


@dataclass(frozen=True)
class ShownClass:
    name: str
    support: list[Tensor]
    queries: list[Named]


@dataclass(frozen=True)
class ShownEpisode:
    accuracy: float
    classes: list[ShownClass]


@dataclass(frozen=True)
class Probed:
    gradients: int
    products: int
    parameters: int
    differences: Tensor
    """(tasks, steps), see `metastep.gradient_difference`"""
    episodes: list[ShownEpisode]


def probe(learner: Learner, episodes: int, data: Path | None) -> Probed:
    images = read_split(learner.config.data, data, SPLIT)
    gradients, products, differences = follow(learner, images)
    return Probed(
        gradients,
        products,
        parameters=sum(leaf.numel() for leaf in tree_leaves(params_of(learner.meta))),
        differences=differences,
        episodes=show_episodes(learner, images, episodes) if episodes else [],
    )


def sampler_of(learner: Learner, images: Pictures, episodes: Episodes) -> Sampler:
    return Sampler.of(images, episodes, EVALUATION_SEED, learner.device, tree_leaves(learner.meta)[0].dtype)


def follow(learner: Learner, images: Pictures) -> tuple[int, int, Tensor]:
    """Gradients and second-order products of one task in training, and how gradients change along its inner loop"""
    estimator = gradient_of(learner.config, learner.net).estimator
    sampler = sampler_of(learner, images, learner.config.train_episodes)
    with counting() as counts:
        estimator(learner.meta, map_tree(lambda x: x[0], sampler(0, 1)))
    loop = estimator.loop
    along = gradient_difference(loop.problem, loop.inner, sum(loop.lengths))
    parts = [along(learner.meta, sampler(0, 4, first)) for first in range(0, TASKS, 4)]
    return counts.gradients, counts.products, torch.cat(parts).double().cpu()


@torch.no_grad()
def show_episodes(learner: Learner, images: Pictures, number: int) -> list[ShownEpisode]:
    """The first ones that the learner is evaluated on"""
    episodes = learner.config.test_episodes
    sampler, shown = sampler_of(learner, images, episodes), []
    for first, panel in enumerate(panels(images, episodes, number, EVALUATION_SEED)):
        support, (x, y) = map_tree(lambda leaf: leaf[0], sampler(0, 1, first))
        shares = learner.predict(learner.adapt(*support), x)
        names = [name for name, _ in panel.labels]
        of_class = shares.view(episodes.ways, episodes.queries, episodes.ways)
        classes = [
            ShownClass(
                name, list(near[:MOST]), [_named(*pair, names, i) for pair in zip(far, rows, strict=True)][:MOST]
            )
            for i, (name, near, far, rows) in enumerate(zip(names, panel.support, panel.query, of_class, strict=True))
        ]
        shown.append(ShownEpisode(100 * float(accuracy(shares, y)), classes))
    return shown


def _named(picture: Tensor, shares: Tensor, names: list[str], truth: int) -> Named:
    best = int(shares.argmax())
    return Named(picture, names[best], best == truth, float(shares[best]))
