"""The loop that people write for meta-transfer: a real step by torch.optim, then virtual ones with `create_graph=True`.

As in the published code, every loss runs the source again, and goes from pair to pair.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy, interpolate, relu6

from metastep.core.windows import window_lengths
from metastep.data.draw import Batch, Batches
from metastep.train.config import Transfer, WhatAndWhere
from metastep.train.transfer.building import choose_device
from metastep.train.transfer.features import buffers_of, tap
from metastep.train.transfer.losses import named
from study.bench.cases import Case
from study.bench.transfer import Nets, config_of, endless, load, nets

__all__ = ["ByHand", "Hand", "load"]

Params = dict[str, Tensor]


class Hand:
    """φ and θ are the parameters of modules; virtual steps leave them alone. φ moves by SGD with momentum, only so"""

    def __init__(self, config: Transfer, built: Nets) -> None:
        self.config, self.target, self.guidance = config, built.target, built.guidance
        guided = {"matching": built.guidance.matching} if built.guidance else {}
        self.modules = nn.ModuleDict({"target": built.target.module, **guided})
        inner, meta = config.inner, config.outer
        self.momentum = inner.momentum
        self.beta = config.method.beta if isinstance(config.method, WhatAndWhere) else 0.0
        self.optimizer = torch.optim.SGD(
            self.modules.parameters(), inner.lr, self.momentum, weight_decay=inner.weight_decay
        )
        if built.guidance:
            networks = built.guidance.networks.parameters()
            self.meta_optimizer = torch.optim.Adam(networks, meta.lr, weight_decay=meta.weight_decay)

    def iterate(self, batch: Batch) -> None:
        self.real_step(batch)
        if self.guidance:
            for p, grad in zip(self.guidance.networks.parameters(), self.meta_gradient(batch), strict=True):
                p.grad = grad
            self.meta_optimizer.step()

    def real_step(self, batch: Batch) -> None:
        """L_acc + β L_tfr; running statistics move here, and only here"""
        x, y = batch
        params: Params = dict(self.modules.named_parameters())
        logits, features = tap(self.target.module, of_target(params), {}, x, self.target.layers)
        loss = cross_entropy(logits, y)
        if self.guidance:
            loss = loss + self.beta * self.transfer_loss(params, features, x)
        grads = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
        for p, grad in zip(params.values(), grads, strict=True):
            p.grad = grad
        self.optimizer.step()

    def meta_gradient(self, batch: Batch) -> tuple[Tensor, ...]:
        """T virtual steps on β L_tfr, one on L_acc, and then L_acc by θ"""
        params: Params = dict(self.modules.named_parameters())
        velocity = {name: self.optimizer.state[p]["momentum_buffer"] for name, p in params.items()}
        for length in window_lengths(self.config.steps, self.config.window):
            _, features = self.run(params, batch[0])
            grads = differentiable(self.beta * self.transfer_loss(params, features, batch[0]), params)
            for _ in range(length):  # multi-step estimation: the same gradient for all of the window
                params, velocity = self.moved(params, velocity, grads)
        params, _ = self.moved(params, velocity, differentiable(self.accuracy_loss(params, batch), params))
        assert self.guidance
        return torch.autograd.grad(self.accuracy_loss(params, batch), list(self.guidance.networks.parameters()))

    def moved(self, params: Params, velocity: Params, grads: Params) -> tuple[Params, Params]:
        inner = self.config.inner
        velocity = {
            name: self.momentum * velocity[name] + grads[name] + inner.weight_decay * p for name, p in params.items()
        }
        return {name: p - inner.lr * velocity[name] for name, p in params.items()}, velocity

    def run(self, params: Params, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        copies = {name: buffer.clone() for name, buffer in buffers_of(self.target.module).items()}
        return tap(self.target.module, of_target(params), copies, x, self.target.layers)

    def accuracy_loss(self, params: Params, batch: Batch) -> Tensor:
        return cross_entropy(self.run(params, batch[0])[0], batch[1])

    def transfer_loss(self, params: Params, features: list[Tensor], x: Tensor) -> Tensor:
        assert self.guidance
        source, networks = self.guidance.source, self.guidance.networks
        with torch.no_grad():
            given = tap(source.module, {}, {}, x, source.layers)[1]
        losses = []
        for m, n in networks.pairs:
            pair, pooled = named((m, n)), given[m].mean((-2, -1))
            what, where = networks.what[pair](pooled).softmax(1), relu6(networks.where[pair](pooled))[:, 0]
            wanted = interpolate(given[m], size=features[n].shape[-2:], mode="bilinear", align_corners=False)
            weight, bias = (params[f"matching.convolutions.{pair}.{part}"] for part in ("weight", "bias"))
            distance = (wanted - conv2d(features[n], weight, bias)).square().mean((-2, -1))
            losses.append((where * (what * distance).sum(1)).mean())
        return torch.stack(losses).sum()


def of_target(params: Params) -> Params:
    return {name.removeprefix("target."): p for name, p in params.items() if name.startswith("target.")}


def differentiable(loss: Tensor, params: Params) -> Params:
    """What a loss does not reach has a gradient of zero: momentum and weight decay act on it all the same"""
    leaves = list(params.values())
    grads = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
    return dict(zip(params, grads, strict=True))


class ByHand:
    """Draw a batch as training does, and iterate"""

    def __init__(self, case: Case, device: torch.device) -> None:
        config, data = config_of(case, device), load(case, device).train
        dtype = choose_device(config)[1]  # which also sets up its precision
        layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
        batches = Batches(data, config.batch, config.data.augment, config.seed)
        self.hand = Hand(config, nets(config, data, batches.batch(0, 0)[0][:2].to(dtype)))
        self._batches = endless(batches, dtype, layout)

    def __call__(self) -> None:
        self.hand.iterate(next(self._batches))


step = ByHand
