"""The losses that an iteration follows, as pure functions of φ, θ and the batch."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from metastep.core.trees import Tree
from metastep.train.transfer.features import Tapped, batch_statistics, tap
from metastep.train.transfer.networks import Guidance, Weights
from metastep.train.transfer.transfer_loss import Guides, transfer_loss

Batch = tuple[Tensor, Tensor]  # pictures (batch, channels, height, width), labels (batch,)


class Losses(NamedTuple):
    """L_acc, β L_tfr and their sum: functions (φ, θ, batch) that use the statistics of the batch and keep none."""

    beta: float
    target: Tapped
    guidance: Guidance | None
    guides: Callable[[], Guides]  # what the source makes of the batch; not called where there is none
    buffers: Tree

    def accuracy(self, params: Tree, meta: Tree, batch: Batch) -> Tensor:
        del meta
        return cross_entropy(self._run(params, batch[0], ())[0], batch[1])

    def transfer(self, params: Tree, meta: Tree, batch: Batch) -> Tensor:
        features = self._run(params, batch[0], self.target.layers)[1]
        return self.beta * self.guided(params, meta, features)[0]

    def total(self, params: Tree, meta: Tree, batch: Batch) -> Tensor:
        logits, features = self._run(params, batch[0], self.target.layers)
        return cross_entropy(logits, batch[1]) + self.beta * self.guided(params, meta, features)[0]

    def guided(self, params: Tree, meta: Tree, features: list[Tensor]) -> tuple[Tensor, list[Weights]]:
        """L_tfr of these features, and the weights it was made with"""
        assert self.guidance
        seen = self.guides()
        weights = functional_call(self.guidance.networks, meta, (seen.pooled,))
        matched = functional_call(self.guidance.matching, params["matching"], (features,))
        return transfer_loss(seen.maps, matched, weights, self.guidance.networks.pairs), weights

    def _run(self, params: Tree, x: Tensor, layers: tuple[str, ...]) -> tuple[Tensor, list[Tensor]]:
        with batch_statistics(self.target.module):
            return tap(self.target.module, params["target"], self.buffers, x, layers)
