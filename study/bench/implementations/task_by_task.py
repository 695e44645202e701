"""What the libraries have in common: they adapt one task at a time, and the outer loss's gradient is autograd's."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from metastep.core.windows import Task
from study.bench.workload import BatchGradient, Gradients, Workload

Batch = tuple[Tensor, Tensor]
TaskGradient = Callable[[Batch, Batch], tuple[Tensor, ...]]  # (support, query) -> in the order of the net's parameters


def averaged(work: Workload, of_task: TaskGradient) -> BatchGradient:
    """The mean over tasks; each task's graph is freed before the next begins"""

    def gradient(tasks: Task) -> Gradients:
        (xs, ys), (xq, yq) = tasks
        total = [torch.zeros_like(p) for p in work.meta.values()]
        for i in range(len(xs)):
            grads = of_task((xs[i], ys[i]), (xq[i], yq[i]))
            total = [a + g / len(xs) for a, g in zip(total, grads, strict=True)]
        return dict(zip(work.meta, total, strict=True))

    return gradient


def loss(net: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    x, y = batch
    return cross_entropy(net(x), y)
