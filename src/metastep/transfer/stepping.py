"""The one place that every iteration goes through."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]  # pictures (n, channels, size, size) as numbers, and their classes
Iterate = Callable[[Any, Batch, Tensor], tuple[Any, dict[str, Tensor]]]


def stepper(iterate: Iterate, device: torch.device) -> Iterate:
    """`iterate(state, batch, lr) -> (state, metrics)` as it is best called on `device`.

    Whoever calls it keeps nothing of the state that goes in, and adds up the metrics that come out before the next
    call: either may be memory that is written over. The last batch of an epoch may be smaller than the others.
    """
    del device  # on a CPU, the call itself
    return iterate
