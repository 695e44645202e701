"""Meta-gradients: from an inner loop to a function (meta, task) -> Estimate.

The unrolled estimator is the Lagrangian recursion of the paper, Λ_{k−1} = Λ_k ∂Φ̂_k/∂s, as a reverse sweep over
windows. It returns a gradient, so nobody differentiates the unroll. It stores one window's graph and one state per
window (with SGD: φ; with Adam: φ, both moments and the gradient). `step/eager.py` computes the same faster, within a
budget of memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metastep.core.checks import require_one_each
from metastep.core.counting import count_gradient
from metastep.core.curvature import Curvature, exact, needs_graph
from metastep.core.custom_losses import length_of
from metastep.core.derivatives import followable, grad_and_value, vjp
from metastep.core.finite import require_finite_task
from metastep.core.first_look import ALL, Reads
from metastep.core.guards import is_alone, undrawn
from metastep.core.looks import Looks
from metastep.core.optimizers import State
from metastep.core.problems import require_shared_space
from metastep.core.solvers import Solver
from metastep.core.torch_errors import explained
from metastep.core.trees import Tree, add, add_scaled, hollow_like, ratio, scale, subtract
from metastep.core.windows import Checkpointed, InnerLoop, Problem, Window, outer_value
from metastep.errors import MetastepError, require_positive

__all__ = ["Estimate", "Estimator", "Sweep", "first_order", "implicit", "reptile_gradient", "unrolled"]


class Estimate(NamedTuple):
    """Hold the outer loss after adaptation, the meta-gradient, and the metrics of the outer loss.

    Args:
        loss: The outer loss, the mean over tasks.
        grad: Its gradient in θ, a tree as θ is.
        metrics: One tensor by name, with a value for each task.
        state: Where the inner loops ended, if the caller asked to keep it.
        growth: How much longer the sweep made Λ, the derivative of the outer loss in φ: ‖Λ before the windows‖ / ‖Λ
            after‖, for each task. None if the method sweeps no window (first order, Reptile, implicit methods) or
            leaves the sweep to autograd (`Reference`).

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> net = torch.nn.Linear(2, 1)
        >>> problem = ms.few_shot(net, torch.nn.functional.mse_loss)
        >>> gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=0.1), steps=2)
        >>> batch = torch.randn(4, 6, 2), torch.randn(4, 6, 1)  # 4 tasks of 6 examples
        >>> estimate = gradient(net, ms.Task(support=batch, query=batch), keep="params")
        >>> estimate.loss.shape, estimate.grad["weight"].shape, estimate.metrics["loss"].shape
        (torch.Size([]), torch.Size([1, 2]), torch.Size([4]))
        >>> estimate.state["weight"].shape
        torch.Size([4, 1, 2])
    """

    loss: Tensor
    grad: Tree
    metrics: dict[str, Tensor]
    state: Any = None
    growth: Tensor | None = None


class Final(NamedTuple):
    """Hold the end of one inner loop, and the solution of an implicit method's linear system."""

    state: State
    solution: Tree = ()


class Sweep(NamedTuple):
    """Say what `unrolled` differentiates, so that a faster engine can do the same.

    Args:
        curvature: How second-order products are computed.
        depth: How many of the last windows are swept; all if None.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> problem = ms.few_shot(torch.nn.Linear(2, 1), torch.nn.functional.mse_loss)
        >>> gradient = ms.MetaGradient(problem, ms.methods.Truncated(depth=3), ms.SGD(lr=0.1), steps=9)
        >>> gradient.estimator.sweep.depth
        3
    """

    curvature: Curvature = exact
    depth: int | None = None


class Solved(NamedTuple):
    """Say what `implicit` solves, so that a faster engine can do the same."""

    solver: Solver
    curvature: Curvature
    solved_for: Problem | None


@dataclass(frozen=True)
class Estimator:
    """Apply a method to one task: call it with (meta, task) for an `Estimate`.

    `MetaGradient.estimator` is one. Nothing maps it over tasks.

    Args:
        loop: The inner loop.
        estimate: The function that a call guards.
        weights: One for the outer loss after each window (MAML++). The last loss alone counts if left out.
        sweep: What is differentiated, if the estimate is the reverse sweep of `unrolled`.
        solved: What is solved, if the estimate is that of `implicit`.
        reads: What of the problem is differentiated.
        looks: The kinds of calls that were looked at.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> net = torch.nn.Linear(2, 1)
        >>> problem = ms.few_shot(net, torch.nn.functional.mse_loss)
        >>> gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=0.1), steps=2)
        >>> batch = torch.randn(6, 2), torch.randn(6, 1)  # one task
        >>> gradient.estimator(ms.parameters(net), ms.Task(batch, batch)).grad["weight"].shape
        torch.Size([1, 2])
    """

    loop: InnerLoop
    estimate: Callable[[Tree, Any], Estimate]
    weights: Sequence[float] | Tensor | None = None
    sweep: Sweep | None = None
    solved: Solved | None = None
    reads: Reads = ALL
    looks: Looks = field(default_factory=Looks, repr=False, compare=False)

    def __call__(self, meta: Tree, task: Any) -> Estimate:
        alone, found = is_alone(), self.unchecked(meta, task)
        if alone:
            require_finite_task(self.loop, meta, task, found.loss, found.grad)
        return found

    def unchecked(self, meta: Tree, task: Any) -> Estimate:
        """Return the same without a look at whether it is finite."""
        return self._guarded(self.estimate, meta, task)  # type: ignore[no-any-return]

    def judge(self, meta: Tree, task: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the outer loss and the metrics. Nothing is differentiated but the inner loop."""
        loss, _, metrics = self._guarded(partial(forward, self.loop, weights=self.weights), meta, task)
        return loss, metrics

    def adapt(self, meta: Tree, task: Any) -> Tree:
        """Return φ at the end of the inner loop. Only the support of the task is used."""
        return self._guarded(self.loop.adapt, meta, task).params

    def _guarded(self, function: Callable[[Tree, Any], Any], meta: Tree, task: Any) -> Any:
        # Gradients are values here. With grad mode on, a pullback of convolutions fails under vmap.
        with torch.no_grad(), explained(meta), self.looks.watched(self.loop, self.reads, meta, task):
            return function(*followable((meta, task)))


def forward(
    loop: InnerLoop, meta: Tree, task: Any, weights: Sequence[float] | Tensor | None = None
) -> tuple[Tensor, State, dict[str, Tensor]]:
    """Return the outer loss, the last state and the metrics.

    With weights, one for each window, the outer loss is Σ weight · loss after that window (MAML++).
    """
    windows, state = loop.windows(task), loop.begin(meta, task)
    if weights is None:
        state = loop.run(windows, state, meta)
        loss, metrics = outer_value(loop.problem, state.params, meta, task)
        return loss, state, metrics
    total = torch.zeros(())
    for window, weight in zip(windows, require_one_each(weights, windows), strict=True):
        state = loop.run([window], state, meta)
        loss, metrics = outer_value(loop.problem, state.params, meta, task)
        total = total + weight * loss
    return total, state, metrics


class Adjoint(NamedTuple):
    """Hold Λ: the derivatives of the outer loss in φ, in the optimizer's memory, and, so far, in θ."""

    params: Tree
    memory: Tree
    meta: Tree


def unrolled(
    loop: InnerLoop,
    curvature: Curvature = exact,
    depth: int | None = None,
    weights: Sequence[float] | Tensor | None = None,
) -> Estimator:
    """Return the reverse sweep over the windows, as a function (meta, task) -> Estimate.

    Args:
        loop: The inner loop.
        curvature: How second-order products are computed.
        depth: Sweep the last `depth` windows only (truncation); all if left out.
        weights: One for each window. The outer loss is then Σ weight · loss after that window (MAML++).

    Returns:
        An `Estimator`.

    Raises:
        MetastepError: A number is below 1; or `depth` and `weights` were both given.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> net = torch.nn.Linear(2, 1)
        >>> problem = ms.few_shot(net, torch.nn.functional.mse_loss)
        >>> gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=0.1), steps=100)
        >>> estimator = ms.estimators.unrolled(gradient.loop, depth=10)
        >>> batch = torch.randn(6, 2), torch.randn(6, 1)  # one task
        >>> estimator(ms.parameters(net), ms.Task(batch, batch)).grad["bias"].shape
        torch.Size([1])
    """
    require_positive(depth=1 if depth is None else depth)
    if depth and weights is not None:
        raise MetastepError("depth and weights exclude each other: a weighted loss before the cut would have no sweep.")

    def estimate(meta: Tree, task: Any) -> Estimate:
        windows = loop.windows(task)
        weight = None if weights is None else require_one_each(weights, windows)
        cut = max(0, len(windows) - depth) if depth else 0
        state = loop.run(windows[:cut], loop.begin(meta, task), meta)
        points, state = loop.traverse(windows[cut:], state, meta)

        loss, adjoint, metrics = outer_adjoint(loop, state, meta, task)
        if weight is not None:
            loss, adjoint = weight[-1] * loss, scale(weight[-1], adjoint)
        length = length_of(loop.problem, adjoint.params)
        for k in reversed(range(cut, len(windows))):
            point = points.pop()  # freed once it was used
            adjoint = pull_window(loop, curvature, windows[k], point, meta, adjoint)
            if weight is not None and k > 0:  # φ before window k is φ after window k − 1
                earlier = outer_adjoint(loop, point.state, meta, task)
                loss, adjoint = add_scaled((loss, adjoint), weight[k - 1], earlier[:2])
        grown = ratio(length_of(loop.problem, adjoint.params), length)
        grad = pull_start(loop, meta, task, adjoint, swept=cut == 0)
        return Estimate(loss, grad, metrics, Final(state), grown)

    return Estimator(loop, estimate, weights, Sweep(curvature, depth), reads=Reads(twice=needs_graph(curvature)))


def outer_adjoint(loop: InnerLoop, state: State, meta: Tree, task: Any) -> tuple[Tensor, Adjoint, dict[str, Tensor]]:
    """Return the outer loss at a state, Λ = ∂L/∂s there (θ may also enter the loss directly), and the metrics."""
    count_gradient()
    by_hand = getattr(loop.problem.outer_loss, "gradients_by_hand", None)  # a loss may bring its own
    both = by_hand or grad_and_value(partial(outer_value, loop.problem), argnums=(0, 1), has_aux=True)
    (d_params, d_meta), (loss, metrics) = both(state.params, meta, task)
    return loss, Adjoint(d_params, hollow_like(state.memory), d_meta), metrics


def pull_window(
    loop: InnerLoop, curvature: Curvature, window: Window, point: Checkpointed, meta: Tree, adjoint: Adjoint
) -> Adjoint:
    """Make one step of the recursion: Λ ∂Φ̂/∂s and Λ ∂Φ̂/∂θ, with one second-order product."""
    state = point.state

    def advance(params: Tree, memory: Tree, grad: Tree, meta: Tree) -> tuple[Tree, Tree]:
        after = loop.inner.advance(State(params, memory, state.step), grad, meta, window.steps)
        return after.params, after.memory

    once = undrawn(advance, "an inner optimizer, or a rate of it,")
    pull = vjp(once, state.params, state.memory, point.grad, meta)[1]
    d_params, d_memory, d_grad, d_rates = pull((adjoint.params, adjoint.memory))
    h, c = curvature(window, state.params, meta, d_grad)
    return Adjoint(add(d_params, h), d_memory, add(add(adjoint.meta, d_rates), c))


def pull_start(loop: InnerLoop, meta: Tree, task: Any, adjoint: Adjoint, swept: bool = True) -> Tree:
    """Return the meta-gradient: what the sweep has gathered for θ, and Λ₀ ∂s₁/∂θ (the identity for MAML).

    If the sweep was cut, its Λ stands for Λ₀, without the part of the memory.
    """
    start, pull = vjp(undrawn(lambda meta: loop.begin(meta, task)[:2], "the start of a problem"), meta)[:2]
    memory = adjoint.memory if swept else hollow_like(start[1])
    return add(adjoint.meta, pull((adjoint.params, memory))[0])


def first_order(loop: InnerLoop) -> Estimator:
    """Return the estimator that gives θ the gradient at the final φ. It stores no state and sweeps no window.

    Args:
        loop: The inner loop.

    Returns:
        An `Estimator`.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> problem = ms.few_shot(torch.nn.Linear(2, 1), torch.nn.functional.mse_loss)
        >>> gradient = ms.MetaGradient(problem, ms.FOMAML(), ms.SGD(lr=0.1), steps=2)
        >>> estimator = ms.estimators.first_order(gradient.loop)
    """

    def estimate(meta: Tree, task: Any) -> Estimate:
        state = loop.adapt(meta, task)
        loss, adjoint, metrics = outer_adjoint(loop, state, meta, task)
        return Estimate(loss, pull_start(loop, meta, task, adjoint, swept=False), metrics, Final(state))

    return Estimator(loop, estimate, None, Sweep(depth=0), reads=Reads(losses=False, twice=False))


def reptile_gradient(loop: InnerLoop, carried: bool = False) -> Estimator:
    """Return the estimator that gives θ the displacement φ₁ − φ_{T+1} as its gradient (Reptile).

    Args:
        loop: The inner loop.
        carried: The optimizer's memory starts from meta too, and moves as φ does.

    Returns:
        An `Estimator`.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> problem = ms.few_shot(torch.nn.Linear(2, 1), torch.nn.functional.mse_loss)
        >>> gradient = ms.MetaGradient(problem, ms.Reptile(), ms.SGD(lr=0.1), steps=2)
        >>> estimator = ms.estimators.reptile_gradient(gradient.loop)
    """

    def estimate(meta: Tree, task: Any) -> Estimate:
        start = loop.begin(meta, task)
        require_shared_space(start.params, meta, "Reptile")
        final = loop.run(loop.windows(task), start, meta)
        loss, metrics = outer_value(loop.problem, final.params, meta, task)
        memory = subtract(start.memory, final.memory) if carried else ()
        way = Adjoint(subtract(start.params, final.params), memory, hollow_like(meta))
        return Estimate(loss, pull_start(loop, meta, task, way, swept=carried), metrics, Final(final))

    return Estimator(loop, estimate, reads=Reads(losses=False, outer=False, twice=False))


def implicit(
    loop: InnerLoop, solver: Solver, curvature: Curvature = exact, solved_for: Problem | None = None
) -> Estimator:
    """Return the estimator of the implicit gradient ∂L/∂θ − (∂²G/∂θ∂φ) H⁻¹ ∂L/∂φ at the end of the inner loop.

    G is the loss of the last window, and H = ∂²G/∂φ². The estimate is right where ∂G/∂φ is zero.

    Args:
        loop: The inner loop.
        solver: How the linear system is solved.
        curvature: How second-order products are computed.
        solved_for: The problem that G belongs to, if the inner loop follows another.

    Returns:
        An `Estimator`.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> problem = ms.few_shot(torch.nn.Linear(2, 1), torch.nn.functional.mse_loss)
        >>> gradient = ms.MetaGradient(problem, ms.IMAML(), ms.SGD(lr=0.1), steps=50)
        >>> estimator = ms.estimators.implicit(gradient.loop, ms.solvers.ConjugateGradient(steps=5))
    """

    def estimate(meta: Tree, task: Any) -> Estimate:
        windows = loop.windows(task)
        state = loop.run(windows, loop.begin(meta, task), meta)
        last = (loop._replace(problem=solved_for).windows(task) if solved_for else windows)[-1]
        return implicit_at(loop, solver, curvature, last, state, meta, task)

    reads = Reads(start=False, twice=needs_graph(curvature))
    return Estimator(loop, estimate, None, None, Solved(solver, curvature, solved_for), reads)


def implicit_at(
    loop: InnerLoop, solver: Solver, curvature: Curvature, last: Window, state: State, meta: Tree, task: Any
) -> Estimate:
    """Return the implicit estimate at a state that is taken for the solution."""
    loss, adjoint, metrics = outer_adjoint(loop, state, meta, task)
    warm = {} if loop.solution is None else {"start": loop.solution}
    solved = solver(lambda v: curvature(last, state.params, meta, v)[0], adjoint.params, **warm)
    grad = subtract(adjoint.meta, curvature(last, state.params, meta, solved)[1])
    return Estimate(loss, grad, metrics, Final(state, solved))
