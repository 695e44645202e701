"""Meta-gradients: from an inner loop to a function (meta, task) -> Estimate.

The unrolled estimator is the Lagrangian recursion of the paper, Λ_{k−1} = Λ_k ∂Φ̂_k/∂s, as a reverse sweep over
windows. It returns a gradient, so that nobody differentiates the unroll, and its memory is one window's graph and the
stored states: one φ for each window with SGD, φ with moments and gradient otherwise, and of many windows only some.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metastep.core import noise
from metastep.core.checks import require_one_each, require_unwritten, versions
from metastep.core.counting import count_gradient
from metastep.core.curvature import Curvature, exact
from metastep.core.derivatives import followable, grad_and_value, vjp
from metastep.core.dynamics import State
from metastep.core.explain import explained
from metastep.core.problems import require_shared_space
from metastep.core.solvers import Solver
from metastep.core.trees import Tree, add, add_scaled, hollow_like, scale, subtract
from metastep.core.windows import InnerLoop, Passage, Problem, Window, outer_value
from metastep.errors import MetastepError, require_positive

STORED = 32  # windows: of 64, half of the states are kept, and half of the gradients evaluated again


class Estimate(NamedTuple):
    """The outer loss after adaptation, the meta-gradient, and whatever the outer loss measured."""

    loss: Tensor
    grad: Tree
    metrics: dict[str, Tensor]


class Estimator(NamedTuple):
    """A method applied to a problem: call it with (meta, task)."""

    loop: InnerLoop
    estimate: Callable[[Tree, Any], Estimate]

    def __call__(self, meta: Tree, task: Any) -> Estimate:
        # Gradients are values here. With grad mode on, a pullback of convolutions fails under vmap.
        before = versions(task)
        with torch.no_grad(), explained(meta):
            result = self.estimate(*followable((meta, task)))
        require_unwritten(task, before)
        return result

    def adapt(self, meta: Tree, task: Any) -> Tree:
        """φ at the end of the inner loop: θ adapted to `task`, of which only the support is looked at."""
        return self.end(meta, task).params

    def end(self, meta: Tree, task: Any) -> State:
        """The same with the optimizer's memory, for an inner loop that goes on from there."""
        with torch.no_grad(), explained(meta):
            return self.loop.adapt(*followable((meta, task)))


class Adjoint(NamedTuple):
    """Λ: how the outer loss answers to φ, to the optimizer's memory, and, so far, to θ."""

    params: Tree
    memory: Tree
    meta: Tree


def unrolled(
    loop: InnerLoop,
    curvature: Curvature = exact,
    depth: int | None = None,
    store_every: int = STORED,
    weights: Sequence[float] | Tensor | None = None,
) -> Estimator:
    """Reverse sweep over the windows.

    depth: sweep the last `depth` windows only (truncation).
    store_every: of more windows than that, keep only the state before each segment of so many, and run the segment
    again on the way back.
    weights: one for each window: the outer loss is Σ weight · loss after that window (MAML++), not only the last.
    """
    require_positive(store_every=store_every, depth=1 if depth is None else depth)
    if depth and weights is not None:
        raise MetastepError("depth and weights exclude each other: a weighted loss before the cut would have no sweep.")

    def estimate(meta: Tree, task: Any) -> Estimate:
        windows = loop.windows(task)
        weight = None if weights is None else require_one_each(weights, windows)
        cut = max(0, len(windows) - depth) if depth else 0
        state = loop.run(windows[:cut], loop.begin(meta, task), meta)
        storage, state = store(loop, windows[cut:], state, meta, store_every)

        loss, adjoint, metrics = outer_adjoint(loop, state, meta, task)
        if weight is not None:
            loss, adjoint = weight[-1] * loss, scale(weight[-1], adjoint)
        for k, (window, passage) in zip(reversed(range(cut, len(windows))), rewind(loop, storage, meta), strict=True):
            adjoint = pull_window(loop, curvature, window, passage, meta, adjoint)
            if weight is not None and k > 0:  # φ before window k is φ after window k − 1
                earlier = outer_adjoint(loop, passage.state, meta, task)
                loss, adjoint = add_scaled((loss, adjoint), weight[k - 1], earlier[:2])
        return Estimate(loss, pull_start(loop, meta, task, adjoint, swept=cut == 0), metrics)

    return Estimator(loop, estimate)


def outer_adjoint(loop: InnerLoop, state: State, meta: Tree, task: Any) -> tuple[Tensor, Adjoint, dict[str, Tensor]]:
    """The outer loss at a state, Λ = ∂L/∂s there (θ may also enter the loss directly), and the metrics"""
    count_gradient()
    by_hand = getattr(loop.problem.outer_loss, "gradients_by_hand", None)  # a loss may bring its own
    both = by_hand or grad_and_value(partial(outer_value, loop.problem), argnums=(0, 1), has_aux=True)
    (d_params, d_meta), (loss, metrics) = both(state.params, meta, task)
    return loss, Adjoint(d_params, hollow_like(state.memory), d_meta), metrics


def pull_window(
    loop: InnerLoop, curvature: Curvature, window: Window, passage: Passage, meta: Tree, adjoint: Adjoint
) -> Adjoint:
    """One step of the recursion: Λ ∂Φ̂/∂s and Λ ∂Φ̂/∂θ, with one second-order product"""
    state = passage.state

    def advance(params: Tree, memory: Tree, grad: Tree, meta: Tree) -> tuple[Tree, Tree]:
        after = loop.dynamics.advance(State(params, memory, state.step), grad, meta, window.steps)
        return after.params, after.memory

    once = noise.refused(advance, "an inner optimizer, or a rate of it,")
    pull = vjp(once, state.params, state.memory, passage.grad, meta)[1]
    d_params, d_memory, d_grad, d_rates = pull((adjoint.params, adjoint.memory))
    h, c = curvature(window, state.params, meta, d_grad)
    return Adjoint(add(d_params, h), d_memory, add(add(adjoint.meta, d_rates), c))


def pull_start(loop: InnerLoop, meta: Tree, task: Any, adjoint: Adjoint, swept: bool = True) -> Tree:
    """The meta-gradient: what the sweep has gathered for θ, and Λ₀ ∂s₁/∂θ (the identity for MAML).

    Where the sweep was cut, its Λ stands for Λ₀, without the part of the memory.
    """
    start, pull = vjp(noise.refused(lambda meta: loop.begin(meta, task)[:2], "the start of a problem"), meta)[:2]
    memory = adjoint.memory if swept else hollow_like(start[1])
    return add(adjoint.meta, pull((adjoint.params, memory))[0])


Storage = list[tuple[list[Window], State, list[Passage]]]  # segments: their windows, state before, passages if kept


def store(loop: InnerLoop, windows: list[Window], state: State, meta: Tree, every: int) -> tuple[Storage, State]:
    """Run the windows; of all segments of `every` windows but the last, keep only where they start."""
    storage: Storage = []
    for i in range(0, len(windows), every):
        segment, start = windows[i : i + every], state
        if i + every < len(windows):
            state = loop.run(segment, start, meta)
            storage.append((segment, start, []))
        else:
            passages, state = loop.traverse(segment, start, meta)
            storage.append((segment, passages[0].state, passages))
    return storage, state


def rewind(loop: InnerLoop, storage: Storage, meta: Tree) -> Iterator[tuple[Window, Passage]]:
    """Windows and passages, last to first; each is let go of once it was used."""
    while storage:
        windows, start, passages = storage.pop()
        passages = passages or loop.traverse(windows, start, meta)[0]
        for window in reversed(windows):
            yield window, passages.pop()


def first_order(loop: InnerLoop) -> Estimator:
    """∂L/∂φ at the final φ, handed to θ as it is; no state is stored and no window is pulled back."""

    def estimate(meta: Tree, task: Any) -> Estimate:
        loss, adjoint, metrics = outer_adjoint(loop, loop.adapt(meta, task), meta, task)
        return Estimate(loss, pull_start(loop, meta, task, adjoint, swept=False), metrics)

    return Estimator(loop, estimate)


def displacement(loop: InnerLoop, carried: bool = False) -> Estimator:
    """φ₁ − φ_{T+1}, the way that the inner loop went, as if it were a gradient (Reptile).

    carried: the optimizer's memory starts from meta too, and went its own way.
    """

    def estimate(meta: Tree, task: Any) -> Estimate:
        start = loop.begin(meta, task)
        require_shared_space(start.params, meta, "Reptile")
        final = loop.run(loop.windows(task), start, meta)
        loss, metrics = outer_value(loop.problem, final.params, meta, task)
        memory = subtract(start.memory, final.memory) if carried else ()
        way = Adjoint(subtract(start.params, final.params), memory, hollow_like(meta))
        return Estimate(loss, pull_start(loop, meta, task, way, swept=carried), metrics)

    return Estimator(loop, estimate)


def implicit(
    loop: InnerLoop, solver: Solver, curvature: Curvature = exact, solved_for: Problem | None = None
) -> Estimator:
    """∂L/∂θ − (∂²G/∂θ∂φ) H⁻¹ ∂L/∂φ where the inner loop has converged; H = ∂²G/∂φ² of the last window's loss G.

    solved_for: the problem that G is of, if the inner loop went by another.
    """

    def estimate(meta: Tree, task: Any) -> Estimate:
        windows = loop.windows(task)
        state = loop.run(windows, loop.begin(meta, task), meta)
        last = (loop._replace(problem=solved_for).windows(task) if solved_for else windows)[-1]
        loss, adjoint, metrics = outer_adjoint(loop, state, meta, task)
        solved = solver(lambda v: curvature(last, state.params, meta, v)[0], adjoint.params)
        return Estimate(loss, subtract(adjoint.meta, curvature(last, state.params, meta, solved)[1]), metrics)

    return Estimator(loop, estimate)
