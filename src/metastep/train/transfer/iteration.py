"""One iteration of meta-transfer learning (Algorithm 1 of the paper), as a pure function of state, batch and rate.

    φ, v  ←  one real step on L_acc + β L_tfr
    T virtual steps on β L_tfr in windows of n, one on L_acc; how L_acc answers to θ after them, by the reverse sweep
    θ     ←  one step of Adam;  φ, v and the running statistics continue from the real step: the rest was never stored

Nothing here waits for the device, so an iteration can be captured. An optimizer sees small parameters as one vector: a
few passes in place of many small ones. A checkpoint keeps the state as a tree.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, grad_and_value, jvp
from torch.nn.functional import cross_entropy

from metastep.core.counting import count_gradient, count_product
from metastep.core.curvature import exact_forward
from metastep.core.estimators import Estimate, first_order, unrolled
from metastep.core.guards import Guarded, guarded, session
from metastep.core.modules import parameters
from metastep.core.optimizers import SGD, Adam, InnerOptimizer, State, is_linear
from metastep.core.rates import Rate
from metastep.core.trees import (
    Tree,
    from_vector,
    hollow_like,
    map_tree,
    relative_change,
    require_same,
    to_vector,
    tree_flatten,
    tree_leaves,
    tree_unflatten,
    zeros_like,
)
from metastep.core.windows import InnerLoop, Loss, Problem, Window, task_gradient, window_lengths
from metastep.errors import MetastepError
from metastep.train.config import Transfer, WhatAndWhere
from metastep.train.io import CheckpointError
from metastep.train.transfer.features import Tapped, buffers_of, tap_and_update
from metastep.train.transfer.losses import Batch, Guidance, Guides, Losses, Weights, guides

LARGE = 2**16  # numbers: a pass over so many is worth its start, and copies into a vector and back would cost as much


class Packed(NamedTuple):
    """The same steps as `inner`, whose rates must be one for all parameters."""

    inner: InnerOptimizer

    def init(self, params: Tree) -> State:
        return self.inner.init(params)

    def advance(self, state: State, grad: Tree, meta: Tree, steps: int) -> State:
        if not tree_leaves(state.params):
            return State(state.params, state.memory, state.step + steps)
        packs = State(packed(state.params), tuple(packed(tree) for tree in state.memory), state.step)
        after = self.inner.advance(packs, packed(grad), meta, steps)
        memory = tuple(unpacked(pack, state.params) for pack in after.memory)
        return State(unpacked(after.params, state.params), memory, after.step)

    def is_linear(self, state: State, meta: Tree, steps: int) -> bool:
        return is_linear(self.inner, state, meta, steps)


def packed(tree: Tree) -> list[Tensor]:
    """The large leaves, and all others as one vector"""
    leaves = tree_leaves(tree)
    small = [leaf for leaf in leaves if leaf.numel() < LARGE]
    return [leaf for leaf in leaves if leaf.numel() >= LARGE] + ([to_vector(small)] if small else [])


def unpacked(pack: list[Tensor], like: Tree) -> Tree:
    leaves, spec = tree_flatten(like)
    small = [leaf for leaf in leaves if leaf.numel() < LARGE]
    large, rest = iter(pack), iter(from_vector(pack[-1], small) if small else ())
    return tree_unflatten([next(rest if leaf.numel() < LARGE else large) for leaf in leaves], spec)


def guided_by(config: Transfer) -> WhatAndWhere:
    """Return the method of a run whose target is guided by a source."""
    assert isinstance(config.method, WhatAndWhere)
    return config.method


def inner_of(config: Transfer, lr: Rate) -> Packed:
    """Return what moves the target, at this rate."""
    return Packed(replace(config.inner, lr=lr))


def outer_of(config: Transfer) -> Packed:
    """Return what moves θ."""
    return Packed(Adam(config.outer.lr, weight_decay=config.outer.weight_decay))


class TransferState(NamedTuple):
    target: State  # φ = {"target": …, "matching": …} by name, the optimizer's memory, the step (float64, 0-d)
    buffers: Tree  # running statistics of the target, by name
    meta: State  # θ by name, its Adam's moments and step


def initial_state(config: Transfer, target: Tapped, guidance: Guidance | None = None) -> TransferState:
    """Return where training starts: copies of what the modules hold. Its structure then stays as it is."""
    matching = parameters(guidance.matching) if guidance else {}
    networks = parameters(guidance.networks) if guidance else {}
    params = _copied({"target": parameters(target.module), "matching": matching})
    none_yet = torch.zeros((), dtype=torch.float64, device=next(target.module.parameters()).device)
    return TransferState(
        _fresh(inner_of(config, 0.0), params, none_yet),
        _copied(buffers_of(target.module)),
        _fresh(outer_of(config), _copied(networks), none_yet.clone()),
    )


def _fresh(inner: Packed, params: Tree, step: Tensor) -> State:
    # torch.optim makes a velocity in the first step, v = ĝ; from a velocity of 0 the first step gives the same.
    velocity = (zeros_like(params),) if isinstance(inner.inner, SGD) and inner.inner.momentum else ()
    return State(params, inner.init(params).memory or velocity, step)


def _copied(tree: Tree) -> Tree:
    return map_tree(lambda x: x.detach().clone(), tree)


def to_tree(state: TransferState, sums: dict[str, Tensor]) -> dict[str, Any]:
    """Return what a checkpoint keeps: the state, and the sums of an epoch that is not over."""
    parts = {"target": _kept(state.target), "buffers": state.buffers, "meta": _kept(state.meta)}
    return {"state": parts, "sums": sums}


def _kept(state: State) -> dict[str, Any]:
    memory = {str(i): tree for i, tree in enumerate(state.memory)}
    return {"params": state.params, "memory": memory, "step": state.step}


def from_tree(tree: Any, like: TransferState, path: Path) -> tuple[TransferState, dict[str, Tensor]]:
    """Return state and sums. `like` says on which device and in which layout; `path` is where the tree came from."""
    try:
        kept, sums = tree["state"], dict(tree["sums"])
        found = TransferState(_state(kept["target"]), kept["buffers"], _state(kept["meta"]))
        require_same(like, found, "the state of this run and its checkpoint's")
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{str(path)!r}: is no checkpoint of transfer training ({error}).") from error
    except MetastepError as error:
        raise CheckpointError(f"{str(path)!r}: does not fit the nets of this run: {error}") from error
    return map_tree(_placed, like, found), sums


def _placed(like: Tensor, saved: Tensor) -> Tensor:
    return torch.empty_like(like, dtype=saved.dtype).copy_(saved)


def _state(tree: dict[str, Any]) -> State:
    return State(tree["params"], tuple(tree["memory"].values()), tree["step"])


# ---- the virtual steps: where φ would go under θ, and how the outer loss there answers to θ


class Lookahead(NamedTuple):
    """T steps on β L_tfr in windows of n and one on L_acc, from the state that the real step has reached."""

    config: Transfer
    losses: Losses
    start: State
    batch: Batch
    lr: Tensor | float

    def estimate(self, meta: Tree) -> Estimate:
        """The outer loss and its gradient in θ; the surrogate sees only the θ that stands in the outer loss itself."""
        lengths = window_lengths(self.config.steps, self.config.window)
        windows = [*(self.window(self.losses.transfer, n) for n in lengths), self.window(self.losses.accuracy, 1)]
        exactly = guided_by(self.config).outer == "accuracy"
        outer = self.losses.accuracy if exactly else self.losses.total
        problem = Problem(lambda meta, batch: self.start, lambda batch, lengths: windows, outer)
        loop = InnerLoop(problem, inner_of(self.config, self.rate()), lengths)
        estimator = unrolled(loop, partial(curvature, windows[0])) if exactly else first_order(loop)
        with session():  # its losses are our own
            return estimator(meta, self.batch)

    def window(self, loss: Loss, steps: int) -> Window:
        return Window(Guarded(loss), self.batch, steps)  # dropout has one mask, however often the sweep returns

    def rate(self) -> Rate:
        """The rate of the real step, times `transfer_rate` in the first T steps from here"""
        factor, end = guided_by(self.config).transfer_rate, self.start.step + self.config.steps
        if factor == 1:
            return self.lr
        return lambda meta, step: self.lr * (1 + (factor - 1) * (step < end).to(end))

    def gradient_difference(self, meta: Tree) -> Tensor:
        """‖∇L_tfr(φ₁) − ∇L_tfr(φ₀)‖ / ‖∇L_tfr(φ₁)‖ over one step"""
        window = self.window(self.losses.transfer, 1)
        before = task_gradient(window, self.start.params, meta)
        moved = inner_of(self.config, self.rate()).advance(self.start, before, meta, 1)
        after = task_gradient(window, moved.params, meta)
        return relative_change(before, after)


def curvature(first: Window, window: Window, params: Tree, meta: Tree, direction: Tree) -> tuple[Tree, Tree]:
    """Exact, by forward mode, which `normalising` is written out for; φ before the first window owes nothing to θ, so
    that nobody asks for (∂²L/∂φ²)·direction there
    """
    return (mixed if window.loss is first.loss else exact_forward)(window, params, meta, direction)


def mixed(window: Window, params: Tree, meta: Tree, direction: Tree) -> tuple[Tree, Tree]:
    """(0, (∂²L/∂θ∂φ)·direction): the derivative of ∂L/∂θ along φ, a forward pass of the target and none backward"""
    count_product()
    gradient = grad(guarded(window.loss).twice, argnums=1)
    return hollow_like(params), jvp(lambda p: gradient(p, meta, window.batch), (params,), (direction,))[1]


# ---- an iteration


Metrics = dict[str, Tensor]
Iterate = Callable[[TransferState, Batch, Tensor | float], tuple[TransferState, Metrics]]


def iteration(
    config: Transfer,
    target: Tapped,
    guidance: Guidance | None = None,
    *,
    recompute_source: bool = False,
    measure_difference: bool = False,
) -> Iterate:
    """Algorithm 1 for these modules: (state, batch, lr) -> (state after it, metrics).

    config: Its method, steps and optimizers. Baseline: window 1. Multi-step: window n. With steps = 0 or
        learned = False, θ stays where it started. Without guidance, the target is trained alone.
    recompute_source: run the source in every evaluation of L_tfr, to measure what caching its features saves.
    measure_difference: also give ‖∇L_tfr(φ₁) − ∇L_tfr(φ₀)‖ / ‖∇L_tfr(φ₁)‖ over one virtual step (two more gradients).

    Metrics: loss = cross_entropy + β · transfer, and correct (a count), all of the real step. For each pair: where, the
    mean λ, and what, the mean of C · max_c w_c (1: all channels alike, C: one of them alone). outer where θ is learned.
    """
    if isinstance(config.method, WhatAndWhere) != (guidance is not None):
        name = config.method_name
        raise MetastepError(f"method = {name}: transfer needs a source and its guidance, the others take none.")
    beta = guided_by(config).beta if guidance else 0.0
    target.module.train()
    if guidance:
        guidance.source.module.eval()

    @torch.no_grad()
    def iterate(state: TransferState, batch: Batch, lr: Tensor | float) -> tuple[TransferState, Metrics]:
        losses = Losses(beta, target, guidance, looks(guidance, batch[0], recompute_source), state.buffers)
        reached, buffers, metrics = real_step(losses, config, state, batch, lr)
        if not config.learns_weights:
            return TransferState(reached, buffers, state.meta), metrics
        look = Lookahead(config, losses._replace(buffers=buffers), reached, batch, lr)
        if measure_difference:
            metrics["gradient_difference"] = look.gradient_difference(state.meta.params)
        estimate = look.estimate(state.meta.params)
        meta = outer_of(config).advance(state.meta, estimate.grad, (), 1)
        return TransferState(reached, buffers, meta), {**metrics, "outer": estimate.loss}

    return iterate


def looks(guidance: Guidance | None, x: Tensor, recompute: bool) -> Callable[[], Guides]:
    """Return the source's features of the pictures: once for all losses, or again for each."""
    if guidance is None:
        return lambda: Guides([], [])
    look = partial(guides, guidance, x)
    if recompute:
        return look
    seen = look()
    return lambda: seen


def real_step(
    losses: Losses, config: Transfer, state: TransferState, batch: Batch, lr: Tensor | float
) -> tuple[State, Tree, Metrics]:
    """One step on L_acc + β L_tfr, the only one that moves φ and the running statistics; θ is a constant to it."""
    x, y = batch
    meta = state.meta.params

    def total(params: Tree) -> tuple[Tensor, tuple[Tree, Metrics]]:
        layers = losses.target.layers if losses.guidance else ()
        logits, features, buffers = tap_and_update(losses.target.module, params["target"], state.buffers, x, layers)
        error = cross_entropy(logits, y)
        metrics = {"cross_entropy": error, "correct": (logits.argmax(1) == y).sum()}
        if not losses.guidance:
            return error, (buffers, metrics)
        transfer, weights = losses.guided(params, meta, features)
        return error + losses.beta * transfer, (buffers, {**metrics, "transfer": transfer, **summary(weights)})

    count_gradient()
    gradient, (loss, (buffers, metrics)) = grad_and_value(total, has_aux=True)(state.target.params)
    reached = inner_of(config, lr).advance(state.target, gradient, (), 1)
    return reached, buffers, {"loss": loss, **metrics}


def summary(weights: list[Weights]) -> Metrics:
    """Return for each pair the mean λ, and how sharp w is, from 1 (all channels alike) to C (one alone)."""
    sharpness = [weight.what.shape[1] * weight.what.amax(1).mean() for weight in weights]
    return {"where": torch.stack([weight.where.mean() for weight in weights]), "what": torch.stack(sharpness)}
