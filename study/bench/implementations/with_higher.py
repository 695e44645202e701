"""higher (0.2.1): the net and a torch.optim optimizer become differentiable inside `innerloop_ctx`."""

from functools import partial

import higher
import torch
from torch import Tensor

from study.bench.cases import inner_of
from study.bench.implementations.task_by_task import Batch, averaged, loss
from study.bench.workload import BatchGradient, Workload, by_gradient


def meta_gradient(work: Workload) -> BatchGradient:
    return averaged(work, partial(task_gradient, work))


def task_gradient(work: Workload, support: Batch, query: Batch) -> tuple[Tensor, ...]:
    sgd, exact = inner_of(work.case), work.case.method == "maml"
    optimizer = torch.optim.SGD(work.net.parameters(), sgd.lr, sgd.momentum, weight_decay=sgd.weight_decay)
    inner_loop = higher.innerloop_ctx(work.net, optimizer, copy_initial_weights=False, track_higher_grads=exact)
    with inner_loop as (net, inner):
        for _ in range(work.case.steps):
            inner.step(loss(net, support))
        start = net.parameters(time=0) if exact else net.parameters()
        return torch.autograd.grad(loss(net, query), list(start))


step = by_gradient(meta_gradient)
