"""Multi-step estimation whose windows grow."""

from dataclasses import dataclass
from typing import Any

import metastep as ms


@ms.register("method", "growing")
@dataclass(frozen=True, repr=False)
class Growing(ms.methods.Method):
    """Let windows grow: 1, 2, 4, … steps share a gradient, as gradients change less towards the end.

    Args:
        first: Steps of the first window.
    """

    first: int = 1

    def loop(self, problem: ms.Problem, inner: Any, steps: Any) -> Any:
        lengths, left = [], steps
        while left:
            lengths.append(min(self.first * 2 ** len(lengths), left))
            left -= lengths[-1]
        return super().loop(problem, inner, lengths)
