"""The inner loop: a list of windows, each one gradient evaluation and `steps` optimizer steps that share it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metastep.core import checks
from metastep.core.counting import count_gradient
from metastep.core.derivatives import grad
from metastep.core.guards import guarded, guarded_windows, session
from metastep.core.optimizers import InnerOptimizer, State, is_linear
from metastep.core.trees import Tree, hollow_like

Loss = Callable[[Tree, Tree, Any], Tensor]  # (params, meta, batch) -> scalar
Steps = int | Sequence[int]  # a number of inner steps, or the length of each window


class Task(NamedTuple):
    """Name the two parts of a task; with a leading task axis if several tasks are stacked.

    Args:
        support: What φ is adapted to, such as (x, y).
        query: What the outer loss measures φ on, such as (x, y).

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> x, y = torch.randn(8, 15, 2), torch.randn(8, 15, 1)  # 8 tasks of 15 examples
        >>> tasks = ms.Task(support=(x[:, :5], y[:, :5]), query=(x[:, 5:], y[:, 5:]))
        >>> tasks.support[0].shape
        torch.Size([8, 5, 2])
    """

    support: Tree
    query: Tree


class Window(NamedTuple):
    """Let `steps` optimizer steps share the gradient of one loss on one batch.

    Args:
        loss: A function (params, meta, batch) -> scalar.
        batch: The last argument of the loss.
        steps: Optimizer steps.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> window = ms.Window(lambda params, meta, batch: (params - batch).square(), torch.tensor(1.0), 4)
        >>> window.steps
        4
    """

    loss: Loss
    batch: Any
    steps: int


class Problem(NamedTuple):
    """Describe a problem by three functions: where φ starts, what the inner loop minimises, and the outer loss.

    For MAML, start(meta, task) is meta. For a meta-network, start ignores meta, and the window losses use it.

    Args:
        start: A function (meta, task) that gives φ, or a `State` with the memory that the inner optimizer continues.
        windows: A function (task, lengths) that gives a list of windows, such as `every_window(loss)`.
        outer_loss: A function (params, meta, task) that gives a scalar, or a scalar and a dict of metrics.
        made_of: The description that these functions were made of, such as a `FewShot`. A faster engine may read it.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> def inner(params, meta, batch):  # θ says how strongly φ is held to zero
        ...     return (params - batch).square() + meta.exp() * params.square()
        >>> def outer(params, meta, task):
        ...     return (params - task.query).square()
        >>> problem = ms.Problem(lambda meta, task: torch.zeros(()), ms.every_window(inner), outer)
        >>> gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=0.1), steps=10)
        >>> tasks = ms.Task(support=torch.randn(4), query=torch.randn(4))
        >>> gradient(torch.zeros(()), tasks).grad.shape
        torch.Size([])
    """

    start: Callable[[Tree, Any], Tree | State]
    windows: Callable[[Any, Sequence[int]], list[Window]]
    outer_loss: Callable[[Tree, Tree, Any], Any]
    made_of: Any = None


class Checkpointed(NamedTuple):
    """Keep what the reverse sweep must know of a window: the state before it, and its gradient."""

    state: State
    grad: Tree


class InnerLoop(NamedTuple):
    """Run the windows of a problem by an inner optimizer. `MetaGradient.loop` is one.

    Args:
        problem: What is minimised.
        inner: The inner optimizer.
        lengths: Steps of each window.
        first: Where the loop begins, in place of the problem's own start. It does not depend on θ.
        solution: Where the solver of an implicit method starts, if an earlier call kept one.
    """

    problem: Problem
    inner: InnerOptimizer
    lengths: tuple[int, ...]
    first: State | None = None
    solution: Tree = None

    def begin(self, meta: Tree, task: Any) -> State:
        if self.first is not None:
            return self.first
        start = self.problem.start(meta, task)
        return start if isinstance(start, State) else self.inner.init(start)

    def windows(self, task: Any) -> list[Window]:
        return guarded_windows(checks.require_windows(self.problem.windows(task, self.lengths)))

    def adapt(self, meta: Tree, task: Any) -> State:
        """Return the state at the end of the inner loop."""
        return self.run(self.windows(task), self.begin(meta, task), meta)

    def run(self, windows: list[Window], state: State, meta: Tree) -> State:
        """Return the state after all windows, and keep nothing else."""
        for window in windows:
            state = self.inner.advance(state, task_gradient(window, state.params, meta), meta, window.steps)
        return state

    def traverse(self, windows: list[Window], state: State, meta: Tree) -> tuple[list[Checkpointed], State]:
        """Return what the sweep needs, too: φ alone where the inner optimizer is linear, everything elsewhere."""
        kept = []
        for window in windows:
            gradient = task_gradient(window, state.params, meta)
            point = Checkpointed(state, gradient)
            if is_linear(self.inner, state, meta, window.steps):
                point = Checkpointed(state._replace(memory=hollow_like(state.memory)), hollow_like(gradient))
            kept.append(point)
            state = self.inner.advance(state, gradient, meta, window.steps)
        return kept, state


def inner_loop(problem: Problem, inner: InnerOptimizer, steps: Steps, window: Steps = 1) -> InnerLoop:
    """Return the loop of `steps` steps, in which each `window` of steps shares a gradient."""
    checks.require_problem(problem)
    checks.require_dynamics(inner)
    return InnerLoop(problem, inner, window_lengths(steps, window))


def window_lengths(steps: Steps, window: Steps = 1) -> tuple[int, ...]:
    """Divide `steps` into windows of `window`, with the remainder in one more. Either may list the lengths instead."""
    checks.require_steps(steps, window)
    for listed in (steps, window):
        if isinstance(listed, Sequence):
            return tuple(listed)
    full, rest = divmod(steps, window)  # type: ignore[operator]
    return (window,) * full + (rest,) * bool(rest)  # type: ignore[return-value]


def task_gradient(window: Window, params: Tree, meta: Tree) -> Tree:
    """Return ∂L/∂φ: the only expensive call of a window on the way forward. A loss may bring its own."""
    count_gradient()
    gradient = getattr(window.loss, "gradient_by_hand", None) or grad(guarded(window.loss))
    return gradient(params, meta, window.batch)


def outer_value(problem: Problem, params: Tree, meta: Tree, task: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the outer loss and its metrics."""
    if torch.compiler.is_compiling():
        return checks.require_judgement(problem.outer_loss(params, meta, task))
    with session() as here:
        try:
            return checks.require_judgement(problem.outer_loss(params, meta, task))
        finally:
            here.put_back()
