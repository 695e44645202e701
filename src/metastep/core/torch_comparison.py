"""Compare the trace of an optimizer with its own steps."""

import inspect
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from metastep.core.torch_state import memory_of
from metastep.core.trees import relative_change

if TYPE_CHECKING:
    from metastep.core.torch_optimizer import TorchOptimizer

STEPS = 8


def differences(optimizer: "TorchOptimizer", shapes: list[torch.Size]) -> Iterator[float]:
    """Return how far φ and the memory are from those of the original after each step, relative to their size.

    φ has these shapes and double precision, and the gradients change their signs.
    """
    start = [torch.linspace(-1, 1, shape.numel(), dtype=torch.float64).reshape(shape) for shape in shapes]
    own, state = [nn.Parameter(p.clone()) for p in start], optimizer.init(start)
    places = [[path[0].idx for path in group.paths] for group in optimizer.groups]
    groups = [g.options | {"params": [own[i] for i in of]} for g, of in zip(optimizer.groups, places, strict=True)]
    original = optimizer.clone(groups, defaultdict(dict))
    for t in range(STEPS):
        grads = [torch.sin(3 * p + t) for p in state.params]
        state = optimizer.advance(state, grads, None, 1)
        for p, g in zip(own, grads, strict=True):
            p.grad = g.clone()
        inspect.unwrap(optimizer.kind.step)(original)
        memory = [memory_of(original.state[p]) for p in own]
        yield max(float(relative_change(a, b)) for a, b in ((list(own), state.params), (memory, state.memory)))
