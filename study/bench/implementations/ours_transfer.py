"""Meta-transfer by metastep itself: the iterations of `metastep transfer run`."""

import torch

from metastep.train.transfer.building import prepare
from metastep.train.transfer.job import Sums, added
from study.bench.cases import Case
from study.bench.transfer import config_of, endless, load, untrained_source

__all__ = ["Trained", "load"]


class Trained:
    """Draw a batch, make an iteration, add up what it measured"""

    def __init__(self, case: Case, device: torch.device) -> None:
        config, splits = config_of(case, device), load(case, device)
        with untrained_source(config, splits.train) as weights:
            parts = prepare(config, splits, None if case.method == "scratch" else weights)
        self._step, self._state = parts.step, parts.initial
        self._batches = endless(parts.train, parts.dtype, parts.layout)
        self._lr = torch.tensor(config.inner.lr, dtype=parts.dtype, device=device)
        self._sums: Sums = {}

    @property
    def path(self) -> str:
        return self._step.path

    def __call__(self) -> None:
        batch = next(self._batches)
        self._state, metrics = self._step(self._state, batch, self._lr)
        self._sums = added(self._sums, metrics, len(batch[1]))


step = Trained
