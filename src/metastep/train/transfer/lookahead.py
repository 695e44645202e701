"""The virtual steps: where φ would go under θ, and how the outer loss there answers to θ."""

from functools import partial
from typing import NamedTuple

from torch import Tensor
from torch.func import grad, jvp

from metastep.core.counting import count_product
from metastep.core.curvature import exact_forward
from metastep.core.estimators import Estimate, first_order, unrolled
from metastep.core.guards import Guarded, guarded, session
from metastep.core.optimizers import State
from metastep.core.rates import Rate
from metastep.core.trees import Tree, hollow_like, relative_change
from metastep.core.windows import InnerLoop, Loss, Problem, Window, task_gradient, window_lengths
from metastep.train.transfer.losses import Batch, Losses
from metastep.train.transfer.method import Method


class Lookahead(NamedTuple):
    """T steps on β L_tfr in windows of n and one on L_acc, from the state that the real step has reached."""

    method: Method
    losses: Losses
    start: State
    batch: Batch
    lr: Tensor | float

    def estimate(self, meta: Tree) -> Estimate:
        """The outer loss and its gradient in θ; the surrogate sees only the θ that stands in the outer loss itself."""
        lengths = window_lengths(self.method.steps, self.method.window)
        windows = [*(self.window(self.losses.transfer, n) for n in lengths), self.window(self.losses.accuracy, 1)]
        exactly = self.method.outer == "accuracy"
        outer = self.losses.accuracy if exactly else self.losses.total
        problem = Problem(lambda meta, batch: self.start, lambda batch, lengths: windows, outer)
        loop = InnerLoop(problem, self.method.inner(self.rate()), lengths)
        estimator = unrolled(loop, partial(curvature, windows[0])) if exactly else first_order(loop)
        with session():  # its losses are our own
            return estimator(meta, self.batch)

    def window(self, loss: Loss, steps: int) -> Window:
        return Window(Guarded(loss), self.batch, steps)  # dropout has one mask, however often the sweep returns

    def rate(self) -> Rate:
        """The rate of the real step, times `transfer_lr` in the first T steps from here"""
        factor, end = self.method.transfer_lr, self.start.step + self.method.steps
        if factor == 1:
            return self.lr
        return lambda meta, step: self.lr * (1 + (factor - 1) * (step < end).to(end))

    def gradient_difference(self, meta: Tree) -> Tensor:
        """‖∇L_tfr(φ₁) − ∇L_tfr(φ₀)‖ / ‖∇L_tfr(φ₁)‖ over one step"""
        window = self.window(self.losses.transfer, 1)
        before = task_gradient(window, self.start.params, meta)
        moved = self.method.inner(self.rate()).advance(self.start, before, meta, 1)
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
