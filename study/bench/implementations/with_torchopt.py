"""TorchOpt (0.7.3): `MetaSGD` takes differentiable steps on the net; states are saved before a task, and put back."""

from functools import partial

import torch
import torchopt
from torch import Tensor

from study.bench.cases import inner_of
from study.bench.implementations.task_by_task import Batch, averaged, loss
from study.bench.workload import BatchGradient, Workload, by_gradient


def meta_gradient(work: Workload) -> BatchGradient:
    sgd = inner_of(work.case)
    optimizer = torchopt.MetaSGD(work.net, sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay)
    return averaged(work, partial(task_gradient, work, optimizer))


def task_gradient(work: Workload, optimizer: torchopt.MetaSGD, support: Batch, query: Batch) -> tuple[Tensor, ...]:
    saved = [torchopt.extract_state_dict(part, by="reference") for part in (work.net, optimizer)]
    for _ in range(work.case.steps):
        optimizer.step(loss(work.net, support))
    grads = torch.autograd.grad(loss(work.net, query), list(work.meta.values()))
    for part, state in zip((work.net, optimizer), saved, strict=True):
        torchopt.recover_state_dict(part, state)
    return grads


step = by_gradient(meta_gradient)
