"""The workloads of `bench modules` with higher and with TorchOpt, as their documentation shows it: exact alone."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import metastep as ms
from metastep.errors import MetastepError
from study.problems import Params, Step, Work, weighted

Pair = tuple[Tensor, Tensor]  # examples and targets


def by_higher(work: Work) -> Step:
    """Return one meta-gradient by higher: the net and the optimizer become differentiable inside of `innerloop_ctx`."""
    import higher  # none of our requirements

    kind, options = _kind_of(work, torch.optim.SGD, torch.optim.Adam)

    def task(support: Pair, query: Pair, meta: Params) -> tuple[Tensor, tuple[Tensor, ...]]:
        optimizer = kind(work.net.parameters(), **options)
        with higher.innerloop_ctx(work.net, optimizer, copy_initial_weights=work.weighted) as (net, inner):
            for _ in range(work.steps):
                inner.step(_inner_loss(work, net, support, meta))
            loss = work.loss(net(query[0]), query[1])
            learned = meta.values() if work.weighted else net.parameters(time=0)
            return loss.detach(), torch.autograd.grad(loss, list(learned))

    return _averaged(work, task)


def by_torchopt(work: Work) -> Step:
    """Return one meta-gradient by TorchOpt: differentiable steps move the net, and its state is put back."""
    import torchopt  # none of our requirements

    kind, options = _kind_of(work, torchopt.MetaSGD, torchopt.MetaAdam)
    optimizer = kind(work.net, **options)

    def task(support: Pair, query: Pair, meta: Params) -> tuple[Tensor, tuple[Tensor, ...]]:
        learned = list(meta.values()) if work.weighted else list(work.net.parameters())
        saved = [torchopt.extract_state_dict(part, by="reference") for part in (work.net, optimizer)]
        for _ in range(work.steps):
            optimizer.step(_inner_loss(work, work.net, support, meta))
        loss = work.loss(work.net(query[0]), query[1])
        grads = torch.autograd.grad(loss, learned)
        for part, state in zip((work.net, optimizer), saved, strict=True):
            torchopt.recover_state_dict(part, state)
        return loss.detach(), grads

    return _averaged(work, task)


def _kind_of(work: Work, sgd: Any, adam: Any) -> tuple[Any, dict[str, Any]]:
    inner = work.inner
    if isinstance(inner, ms.SGD):
        return sgd, {"lr": inner.lr, "momentum": inner.momentum}
    if isinstance(inner, ms.Adam):
        return adam, {"lr": inner.lr, "betas": inner.betas, "eps": inner.eps}
    raise MetastepError(f"{inner!r} is not compared.")


def _inner_loss(work: Work, net: Callable[[Tensor], Tensor], batch: Pair, meta: Params) -> Tensor:
    prediction = net(batch[0])
    return weighted(prediction, batch[1], meta) if work.weighted else work.loss(prediction, batch[1])


def _averaged(work: Work, task: Callable[..., tuple[Tensor, tuple[Tensor, ...]]]) -> Step:
    meta = work.meta

    def step() -> tuple[Tensor, Params]:
        (xs, ys), (xq, yq) = work.tasks
        losses, totals = [], [torch.zeros_like(x) for x in meta.values()]
        for i in range(len(xs)):
            loss, grads = task((xs[i], ys[i]), (xq[i], yq[i]), meta)
            totals = [total + g / len(xs) for total, g in zip(totals, grads, strict=True)]
            losses.append(loss)
        return torch.stack(losses).mean(), dict(zip(meta, totals, strict=True))

    return step
