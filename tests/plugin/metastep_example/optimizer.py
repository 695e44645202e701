"""A smooth Lion (Chen et al. 2023): steps of nearly one length, in the direction of gradient and momentum."""

from dataclasses import dataclass
from typing import Any

import metastep as ms


@ms.register("optimizer", "lion")
@dataclass(frozen=True)
class Lion:
    """Move every entry by nearly the same length, in the direction of a mixture of momentum and gradient.

    Args:
        lr: The length of a step.
        beta: How much of the old momentum is kept.
        softness: Below this size of the momentum, steps become shorter.
    """

    lr: float = 0.1
    beta: float = 0.9
    softness: float = 0.01

    def init(self, params: Any) -> ms.optimizers.State:
        return ms.optimizers.State(params, ms.trees.zeros_like(params))

    def advance(self, state: ms.optimizers.State, grad: Any, meta: Any, steps: int) -> ms.optimizers.State:
        params, memory, step = state
        for _ in range(steps):
            memory = ms.trees.map_tree(lambda m, g: self.beta * m + (1 - self.beta) * g, memory, grad)
            params = ms.trees.map_tree(lambda p, m: p - self.lr * m / (m.abs() + self.softness), params, memory)
        return ms.optimizers.State(params, memory, step + steps)
