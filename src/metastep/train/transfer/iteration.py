"""One iteration of meta-transfer learning (Algorithm 1 of the paper), as a pure function of state, batch and rate.

    φ, v  ←  one real step on L_acc + β L_tfr
    T virtual steps on β L_tfr in windows of n, one on L_acc; how L_acc answers to θ after them, by the reverse sweep
    θ     ←  one step of Adam;  φ, v and the running statistics go on from the real step: the rest was never stored

Nothing here waits for the device, so an iteration can be captured.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.func import grad_and_value
from torch.nn.functional import cross_entropy

from metastep.core.counting import count_gradient
from metastep.core.optimizers import State
from metastep.core.trees import Tree
from metastep.errors import MetastepError
from metastep.train.transfer.features import Tapped, tap_and_update
from metastep.train.transfer.lookahead import Lookahead
from metastep.train.transfer.losses import Batch, Losses
from metastep.train.transfer.method import Method, TransferState, initial_state
from metastep.train.transfer.networks import Guidance, Weights
from metastep.train.transfer.transfer_loss import Guides, guides

__all__ = ["Batch", "Iterate", "Method", "Metrics", "TransferState", "initial_state", "iteration"]

Metrics = dict[str, Tensor]
Iterate = Callable[[TransferState, Batch, Tensor | float], tuple[TransferState, Metrics]]


def iteration(
    method: Method,
    target: Tapped,
    guidance: Guidance | None = None,
    *,
    recompute_source: bool = False,
    measure_difference: bool = False,
) -> Iterate:
    """Algorithm 1 for these modules: (state, batch, lr) -> (state after it, metrics).

    recompute_source: run the source in every evaluation of L_tfr, to measure what caching its features saves.
    measure_difference: also give ‖∇L_tfr(φ₁) − ∇L_tfr(φ₀)‖ / ‖∇L_tfr(φ₁)‖ over one virtual step (two more gradients).

    Metrics: loss = cross_entropy + β · transfer, and correct (a count), all of the real step. For each pair: where, the
    mean λ, and what, the mean of C · max_c w_c (1: all channels alike, C: one of them alone). outer where θ is learned.
    """
    if (method.kind == "transfer") != (guidance is not None):
        raise MetastepError(f"kind = {method.kind!r}: transfer needs a source and its guidance, scratch takes none.")
    target.module.train()
    if guidance:
        guidance.source.module.eval()

    @torch.no_grad()
    def iterate(state: TransferState, batch: Batch, lr: Tensor | float) -> tuple[TransferState, Metrics]:
        losses = Losses(method.beta, target, guidance, looks(guidance, batch[0], recompute_source), state.buffers)
        reached, buffers, metrics = real_step(losses, method, state, batch, lr)
        if not method.learns:
            return TransferState(reached, buffers, state.meta), metrics
        look = Lookahead(method, losses._replace(buffers=buffers), reached, batch, lr)
        if measure_difference:
            metrics["gradient_difference"] = look.gradient_difference(state.meta.params)
        estimate = look.estimate(state.meta.params)
        meta = method.meta_optimizer.advance(state.meta, estimate.grad, (), 1)
        return TransferState(reached, buffers, meta), {**metrics, "outer": estimate.loss}

    return iterate


def looks(guidance: Guidance | None, x: Tensor, recompute: bool) -> Callable[[], Guides]:
    """What the source makes of the pictures: found once for all losses, or again by each"""
    if guidance is None:
        return lambda: Guides([], [])
    look = partial(guides, guidance, x)
    if recompute:
        return look
    seen = look()
    return lambda: seen


def real_step(
    losses: Losses, method: Method, state: TransferState, batch: Batch, lr: Tensor | float
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
    reached = method.inner(lr).advance(state.target, gradient, (), 1)
    return reached, buffers, {"loss": loss, **metrics}


def summary(weights: list[Weights]) -> Metrics:
    """For each pair: the mean λ, and how sharp w is, from 1 (all channels alike) to C (one channel alone)"""
    sharpness = [weight.what.shape[1] * weight.what.amax(1).mean() for weight in weights]
    return {"where": torch.stack([weight.where.mean() for weight in weights]), "what": torch.stack(sharpness)}
