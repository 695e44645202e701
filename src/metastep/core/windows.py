"""The inner loop: a list of windows, each one gradient evaluation and `steps` optimizer steps that share it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from metastep.core import checks, noise
from metastep.core.counting import count_gradient
from metastep.core.derivatives import grad
from metastep.core.dynamics import Dynamics, State, is_linear
from metastep.core.trees import Tree, hollow_like

Loss = Callable[[Tree, Tree, Any], Tensor]  # (params, meta, batch) -> scalar
Steps = int | Sequence[int]  # a number of inner steps, or the length of each window


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
        return noise.fixed(checks.require_windows(self.problem.windows(task, self.lengths)))

    def adapt(self, meta: Tree, task: Any) -> State:
        """The state at the end of the inner loop"""
        return self.run(self.windows(task), self.begin(meta, task), meta)

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
            if is_linear(self.dynamics, state, meta, window.steps):
                passage = Passage(state._replace(memory=hollow_like(state.memory)), hollow_like(gradient))
            passages.append(passage)
            state = self.dynamics.advance(state, gradient, meta, window.steps)
        return passages, state


def inner_loop(problem: Problem, dynamics: Dynamics, steps: Steps, window: int = 1) -> InnerLoop:
    """`steps` steps of `dynamics` on `problem`, of which `window` at a time share a gradient."""
    checks.require_problem(problem)
    checks.require_dynamics(dynamics)
    return InnerLoop(problem, dynamics, window_lengths(steps, window))


def window_lengths(steps: Steps, window: int = 1) -> tuple[int, ...]:
    """`steps` in windows of `window`, the remainder in one more; or an explicit list such as [4, 2, 1, 1]."""
    checks.require_steps(steps, window)
    if isinstance(steps, Sequence):
        return tuple(steps)
    full, rest = divmod(steps, window)
    return (window,) * full + (rest,) * bool(rest)


def task_gradient(window: Window, params: Tree, meta: Tree) -> Tree:
    """∂L/∂φ: the only expensive call of a window on the way forward; a loss may bring its own"""
    count_gradient()
    gradient = getattr(window.loss, "gradient_by_hand", None) or grad(scalar(window.loss))
    return gradient(params, meta, window.batch)


def joint_gradient(window: Window, params: Tree, meta: Tree) -> tuple[Tree, Tree]:
    """(∂L/∂φ, ∂L/∂θ)"""
    count_gradient()
    return grad(scalar(window.loss), argnums=(0, 1))(params, meta, window.batch)  # type: ignore[no-any-return]


def outer_value(problem: Problem, params: Tree, meta: Tree, task: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The outer loss and its metrics"""
    return checks.require_judgement(problem.outer_loss(params, meta, task))


def scalar(loss: Loss) -> Loss:
    return lambda params, meta, batch: checks.require_scalar(loss(params, meta, batch), "an inner loss")
