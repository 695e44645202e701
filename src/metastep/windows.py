"""The inner loop: a list of windows, each one gradient evaluation and `steps` optimizer steps that share it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from metastep.counting import count_gradient
from metastep.dynamics import Dynamics, State, is_linear
from metastep.errors import MetastepError
from metastep.trees import Tree, hollow_like

Loss = Callable[[Tree, Tree, Any], Tensor]  # (params, meta, batch) -> scalar


class Task(NamedTuple):
    """What one task is made of; with a leading task axis when several are stacked."""

    support: Tree
    query: Tree


class Window(NamedTuple):
    """`steps` optimizer steps that share the gradient of one loss on one batch."""

    loss: Loss
    batch: Any
    steps: int


class Problem(NamedTuple):
    """Three functions say everything: where φ starts, what the inner loop follows, what the outer loop wants.

    `start` returns φ, or a State where an optimizer's memory carries over. MAML: start(meta, task) = meta. A
    meta-network: start ignores meta and the window losses use it. The outer loss may return (loss, metrics).
    """

    start: Callable[[Tree, Any], Tree | State]
    windows: Callable[[Any, Sequence[int]], list[Window]]
    outer_loss: Callable[[Tree, Tree, Any], Any]


class Passage(NamedTuple):
    """What the reverse sweep must know of a window: the state before it, and the gradient it used."""

    state: State
    grad: Tree


class InnerLoop(NamedTuple):
    problem: Problem
    dynamics: Dynamics
    lengths: tuple[int, ...]

    def begin(self, meta: Tree, task: Any) -> State:
        start = self.problem.start(meta, task)
        return start if isinstance(start, State) else self.dynamics.init(start)

    def windows(self, task: Any) -> list[Window]:
        return self.problem.windows(task, self.lengths)

    def run(self, windows: list[Window], state: State, meta: Tree) -> State:
        """The state after all windows; nothing is kept."""
        for window in windows:
            gradient = task_gradient(window, state.params, meta)
            state = self.dynamics.advance(state, gradient, meta, window.steps)
        return state

    def traverse(self, windows: list[Window], state: State, meta: Tree) -> tuple[list[Passage], State]:
        """The same, with what the sweep needs: φ alone where the dynamics is linear, everything elsewhere."""
        passages = []
        for window in windows:
            gradient = task_gradient(window, state.params, meta)
            passage = Passage(state, gradient)
            if is_linear(self.dynamics, state, meta):
                passage = Passage(state._replace(memory=hollow_like(state.memory)), hollow_like(gradient))
            passages.append(passage)
            state = self.dynamics.advance(state, gradient, meta, window.steps)
        return passages, state


def window_lengths(steps: int | Sequence[int], window: int = 1) -> tuple[int, ...]:
    """`steps` in windows of `window`, the remainder in one more; or an explicit list such as [4, 2, 1, 1]."""
    if window < 1:
        raise MetastepError(f"window = {window}: a window shares one gradient among at least 1 step.")
    if isinstance(steps, int):
        if steps < 1:
            raise MetastepError(f"steps = {steps}: an inner loop takes at least 1 step.")
        full, rest = divmod(steps, window)
        return (window,) * full + (rest,) * bool(rest)
    if not steps or min(steps) < 1:
        raise MetastepError(f"steps = {list(steps)}: a list of windows needs at least one, each of at least 1 step.")
    if window != 1:
        raise MetastepError(f"steps = {list(steps)} already says how long each window is: leave window = {window} out.")
    return tuple(steps)


def task_gradient(window: Window, params: Tree, meta: Tree) -> Tree:
    """∂L/∂φ: the only expensive call of a window on the way forward; a loss may bring its own"""
    count_gradient()
    gradient = getattr(window.loss, "gradient", None) or grad(scalar(window.loss))
    return gradient(params, meta, window.batch)


def joint_gradient(window: Window, params: Tree, meta: Tree) -> tuple[Tree, Tree]:
    """(∂L/∂φ, ∂L/∂θ)"""
    count_gradient()
    return grad(scalar(window.loss), argnums=(0, 1))(params, meta, window.batch)  # type: ignore[no-any-return]


def outer_value(problem: Problem, params: Tree, meta: Tree, task: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The outer loss and its metrics"""
    value = problem.outer_loss(params, meta, task)
    loss, metrics = value if isinstance(value, tuple) else (value, {})
    return require_scalar(loss, "the outer loss"), metrics


def scalar(loss: Loss) -> Loss:
    return lambda params, meta, batch: require_scalar(loss(params, meta, batch), "an inner loss")


def require_scalar(value: Any, what: str) -> Tensor:
    if not isinstance(value, torch.Tensor) or value.dim() != 0:
        got = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise MetastepError(f"{what} must be one number for each task, not {got}: reduce it with .mean() or .sum().")
    return value
