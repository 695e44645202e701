"""One iteration of meta-transfer learning (Algorithm 1 of the paper), as a pure function of state, batch and rate.

    φ, v  ←  one real step on L_acc + β L_tfr
    T virtual steps on β L_tfr in windows of n, one on L_acc; how L_acc answers to θ after them, by the reverse sweep
    θ     ←  one step of Adam;  φ, v and the running statistics go on from the real step: the rest was never stored

Losses, windows and the sweep are the library's; nothing here waits for the device, so an iteration can be captured.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value
from torch.nn.functional import cross_entropy

from metastep.counting import count_gradient
from metastep.dynamics import SGD, Adam, State
from metastep.errors import MetastepError, require_positive
from metastep.estimators import Estimate, first_order, unrolled
from metastep.modules import parameters_of
from metastep.problems import with_fixed_noise
from metastep.rates import Rate, require_rates
from metastep.transfer.features import Tapped, batch_statistics, buffers_of, tap, tap_and_update
from metastep.transfer.loss import Guide, guides, transfer_loss
from metastep.transfer.networks import Guidance, Weights
from metastep.trees import Tree, map_tree, norm, subtract, zeros_like
from metastep.windows import InnerLoop, Problem, Window, task_gradient, window_lengths

Batch = tuple[Tensor, Tensor]  # pictures (batch, channels, height, width), labels (batch,)
Metrics = dict[str, Tensor]


@dataclass(frozen=True)
class Method:
    """How a target is trained: alone (scratch), or guided by a source (transfer).

    Baseline: steps T, window 1. Multi-step: window n. With steps = 0 or learned = False, θ stays where it started.
    transfer_lr multiplies the rate of the virtual transfer steps, and of nothing else.
    """

    kind: Literal["scratch", "transfer"] = "transfer"
    steps: int = 2
    window: int = 1
    beta: float = 0.5
    learned: bool = True  # False: build the guidance with uniform weights
    outer: Literal["accuracy", "total"] = "accuracy"  # total: the first-order surrogate
    transfer_lr: float = 1.0
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.9
    weight_decay: float = 1e-4
    meta_lr: float = 1e-3
    meta_weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        require_rates(momentum=self.momentum, weight_decay=self.weight_decay, beta=self.beta)
        require_rates(meta_lr=self.meta_lr, meta_weight_decay=self.meta_weight_decay)
        require_positive(window=self.window, transfer_lr=self.transfer_lr)
        if self.steps < 0:
            raise MetastepError(f"steps = {self.steps}: virtual steps are counted from 0, which learns no weights.")

    @property
    def learns(self) -> bool:
        """Whether θ moves: without virtual transfer steps its meta-gradient is 0, and decay alone should not move it"""
        return self.kind == "transfer" and self.learned and self.steps > 0

    def dynamics(self, lr: Rate) -> SGD | Adam:
        if self.optimizer == "adam":
            return Adam(lr, weight_decay=self.weight_decay)
        return SGD(lr, self.momentum, weight_decay=self.weight_decay)

    @property
    def meta_dynamics(self) -> Adam:
        return Adam(self.meta_lr, weight_decay=self.meta_weight_decay)


class TransferState(NamedTuple):
    target: State  # φ = {"target": …, "matching": …} by name, the optimizer's memory, the step (float64, 0-d)
    buffers: Tree  # running statistics of the target, by name
    meta: State  # θ by name, its Adam's moments and step


Iterate = Callable[[TransferState, Batch, Tensor | float], tuple[TransferState, Metrics]]


def initial_state(method: Method, target: Tapped, guidance: Guidance | None = None) -> TransferState:
    """Where training starts: copies of what the modules hold. Its structure stays as it is from then on."""
    matching = parameters_of(guidance.matching) if guidance else {}
    networks = parameters_of(guidance.networks) if guidance else {}
    params = _copied({"target": parameters_of(target.module), "matching": matching})
    none_yet = torch.zeros((), dtype=torch.float64, device=next(target.module.parameters()).device)
    return TransferState(
        _fresh(method.dynamics(0.0), params, none_yet),
        _copied(buffers_of(target.module)),
        _fresh(method.meta_dynamics, _copied(networks), none_yet.clone()),
    )


def _fresh(dynamics: SGD | Adam, params: Tree, step: Tensor) -> State:
    # torch.optim makes a velocity in the first step, v = ĝ; from a velocity of 0 the first step gives the same.
    velocity = (zeros_like(params),) if isinstance(dynamics, SGD) and dynamics.momentum else ()
    return State(params, dynamics.init(params).memory or velocity, step)


def _copied(tree: Tree) -> Tree:
    return map_tree(lambda x: x.detach().clone(), tree)


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
        x, _ = batch
        seen = guides(guidance, x) if guidance else []
        again = (lambda: guides(guidance, x)) if guidance and recompute_source else (lambda: seen)
        losses = Losses(method.beta, target, guidance, again, state.buffers)
        reached, buffers, metrics = real_step(losses, method, state, batch, lr)
        if not method.learns:
            return TransferState(reached, buffers, state.meta), metrics
        look = Lookahead(method, losses._replace(buffers=buffers), reached, batch, lr)
        if measure_difference:
            metrics["gradient_difference"] = look.gradient_difference(state.meta.params)
        estimate = look.estimate(state.meta.params)
        meta = method.meta_dynamics.advance(state.meta, estimate.grad, (), 1)
        return TransferState(reached, buffers, meta), {**metrics, "outer": estimate.loss}

    return iterate


class Losses(NamedTuple):
    """L_acc, β L_tfr and their sum as pure functions (φ, θ, batch), with the statistics of the batch."""

    beta: float
    target: Tapped
    guidance: Guidance | None
    guides: Callable[[], list[Guide]]
    buffers: Tree

    def accuracy(self, params: Tree, meta: Tree, batch: Batch) -> Tensor:
        del meta
        return cross_entropy(self._run(params, batch[0], ())[0], batch[1])

    def transfer(self, params: Tree, meta: Tree, batch: Batch) -> Tensor:
        features = self._run(params, batch[0], self.target.layers)[1]
        return self.beta * self.guided(params, meta, features)[0]

    def total(self, params: Tree, meta: Tree, batch: Batch) -> Tensor:
        logits, features = self._run(params, batch[0], self.target.layers)
        return cross_entropy(logits, batch[1]) + self.beta * self.guided(params, meta, features)[0]

    def guided(self, params: Tree, meta: Tree, features: list[Tensor]) -> tuple[Tensor, list[Weights]]:
        """L_tfr, and the weights it was made with"""
        assert self.guidance
        seen = self.guides()
        weights = functional_call(self.guidance.networks, meta, ([guide.pooled for guide in seen],))
        matched = functional_call(self.guidance.matching, params["matching"], (features,))
        return transfer_loss(seen, matched, weights), weights

    def _run(self, params: Tree, x: Tensor, layers: tuple[str, ...]) -> tuple[Tensor, list[Tensor]]:
        with batch_statistics(self.target.module):
            return tap(self.target.module, params["target"], self.buffers, x, layers)


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
    reached = method.dynamics(lr).advance(state.target, gradient, (), 1)
    return reached, buffers, {"loss": loss, **metrics}


def summary(weights: list[Weights]) -> Metrics:
    """For each pair: the mean λ, and how sharp w is, from 1 (all channels alike) to C (one channel alone)"""
    sharpness = [weight.what.shape[1] * weight.what.amax(1).mean() for weight in weights]
    return {"where": torch.stack([weight.where.mean() for weight in weights]), "what": torch.stack(sharpness)}


class Lookahead(NamedTuple):
    """The virtual steps from the state that the real step has reached."""

    method: Method
    losses: Losses
    start: State
    batch: Batch
    lr: Tensor | float

    def estimate(self, meta: Tree) -> Estimate:
        """The outer loss and its gradient in θ; the surrogate sees only the θ that stands in the outer loss itself."""
        lengths = window_lengths(self.method.steps, self.method.window)
        loop = InnerLoop(with_fixed_noise(self.problem()), self.method.dynamics(self.rate()), lengths)
        estimator = unrolled if self.method.outer == "accuracy" else first_order
        return estimator(loop)(meta, self.batch)

    def problem(self) -> Problem:
        def windows(batch: Batch, lengths: Any) -> list[Window]:
            return [*(Window(self.losses.transfer, batch, n) for n in lengths), Window(self.losses.accuracy, batch, 1)]

        outer = self.losses.accuracy if self.method.outer == "accuracy" else self.losses.total
        return Problem(lambda meta, batch: self.start, windows, outer)

    def rate(self) -> Rate:
        """The rate of the real step, times `transfer_lr` in the first T steps from here"""
        factor, end = self.method.transfer_lr, self.start.step + self.method.steps
        if factor == 1:
            return self.lr
        return lambda meta, step: self.lr * (1 + (factor - 1) * (step < end).to(end))

    def gradient_difference(self, meta: Tree) -> Tensor:
        window = Window(self.losses.transfer, self.batch, 1)
        before = task_gradient(window, self.start.params, meta)
        moved = self.method.dynamics(self.rate()).advance(self.start, before, meta, 1)
        after = task_gradient(window, moved.params, meta)
        length = norm(after)
        return norm(subtract(after, before)) / length.clamp_min(torch.finfo(length.dtype).tiny)  # 0 where λ is
