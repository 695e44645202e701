"""Adapt learners to a few pictures of each class, and give probabilities for new pictures."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from metastep.core.trees import Tree, tree_leaves
from metastep.data.pictures import Pixels
from metastep.train.config import FewShot
from metastep.train.fewshot.classify import adapted, seen_by, stacked
from metastep.train.fewshot.learner import Learner
from metastep.train.presets import shipped

FIRST_ORDER = "omniglot-5w1s-first-order"  # the learner that others are compared with
METHODS = {"maml": "MAML", "multi_step": "Multi-step", "fo_maml": "FO-MAML", "reptile": "Reptile"}


class Player(NamedTuple):
    """One of the learners whose answers are shown side by side."""

    name: str
    about: str
    learner: Learner


class Answer(NamedTuple):
    """What one learner says."""

    name: str
    milliseconds: float
    """How long it took to adapt"""
    probabilities: list[list[float]] | None
    """For each query, of each class; None if adapting diverged"""


class Adapted(NamedTuple):
    learner: Learner
    params: Tree
    support: Tensor
    milliseconds: float


@dataclass
class Session:
    """Hold the learners, and what they adapted to last."""

    players: tuple[Player, ...]
    lock: Lock = field(default_factory=Lock)
    kept: tuple[bytes, list[Adapted]] = (b"", [])

    @classmethod
    def of(cls, learner: Learner) -> "Session":
        """Return a session that shows a learner and others of the same pictures, warmed up."""
        session = cls(tuple(players(learner)))
        net = learner.config.net
        blank = np.zeros((net.channels, net.size, net.size), np.uint8)
        session.answer([[blank], [blank]], [blank])  # the first call is slow
        return session

    @property
    def config(self) -> FewShot:
        """Return the configuration of the learner in question."""
        return self.players[0].learner.config

    def answer(self, classes: Sequence[Sequence[Pixels]], queries: Sequence[Pixels]) -> list[Answer]:
        """Return the answers of all learners.

        Args:
            classes: Pictures (channels, size, size) of each class, as bytes.
            queries: Pictures to name.
        """
        with self.lock:
            return [
                Answer(player.name, one.milliseconds, probabilities(one, queries))
                for player, one in zip(self.players, self._adapted(classes), strict=True)
            ]

    def _adapted(self, classes: Sequence[Sequence[Pixels]]) -> list[Adapted]:
        """Adapt only if the examples are others than the last time."""
        key = b"|".join(b"".join(map(np.ndarray.tobytes, pictures)) for pictures in classes)
        if key != self.kept[0]:
            self.kept = key, [adapt(player.learner, classes) for player in self.players]
        return self.kept[1]


def players(learner: Learner) -> Iterator[Player]:
    """Yield the learner, one of first order if it knows the same pictures, and an untrained net."""
    yield Player("Learner", described(learner.config), learner)
    if (path := shipped().get(FIRST_ORDER)) and not is_first_order(learner.config):
        other = Learner.load(path)
        if (other.config.data.name, other.config.net.shape) == (learner.config.data.name, learner.config.net.shape):
            yield Player("First order", described(other.config), other.to(learner.device))
    untrained = Learner.fresh(learner.config)
    untrained.net.eval()  # as a learner that is loaded
    yield Player("Untrained", "the learner's net before training", untrained.to(learner.device))


def described(config: FewShot) -> str:
    """Return in a few words how a learner was trained."""
    method = METHODS.get(config.method_name, config.method_name)
    return f"{method}, {config.iterations:,} iterations of {config.tasks} tasks, {config.net.described}"


def is_first_order(config: FewShot) -> bool:
    return config.method_name in ("fo_maml", "reptile")


def adapt(learner: Learner, classes: Sequence[Sequence[Pixels]]) -> Adapted:
    """Adapt to the pictures of each class, and take the time."""
    began = time.perf_counter()
    learner = learner.changed(ways=len(classes))
    labels = torch.tensor([label for label, pictures in enumerate(classes) for _ in pictures])
    support = seen_by(learner, stacked([picture for pictures in classes for picture in pictures]))
    params = adapted(learner, support, labels)
    return Adapted(learner, params, support, 1000 * (time.perf_counter() - began))


def probabilities(to: Adapted, queries: Sequence[Pixels]) -> list[list[float]] | None:
    """Return the probabilities of each query, judged apart from the others."""
    if not all(bool(value.isfinite().all()) for value in tree_leaves(to.params)):
        return None
    if not queries:
        return []
    new = seen_by(to.learner, stacked(queries))
    found: list[list[float]] = to.learner.predict(to.params, new, support=to.support).tolist()
    return found
