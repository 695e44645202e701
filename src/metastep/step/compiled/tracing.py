"""An inner loop as functions of flat lists of tensors, each traced once: its start, its windows, its outer loss.

What is traced is the specification itself (`metastep.core`). Windows that differ in their batch alone are one trace.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value, vjp, vmap

from metastep.core.checks import require_windows
from metastep.core.curvature import exact, exact_forward
from metastep.core.derivatives import grad
from metastep.core.estimators import Adjoint, Estimator, Sweep, pull_window
from metastep.core.guards import guarded
from metastep.core.optimizers import SGD, State
from metastep.core.rates import asked_by
from metastep.core.trees import Tree, hollow_like, is_number, tree_flatten, tree_leaves, tree_unflatten
from metastep.core.windows import Checkpointed, Window, outer_value
from metastep.step.compiled.graphs import Traced, UntraceableError, is_tangent, reached, set_outputs
from metastep.step.compiled.inductor import results_like, traced

Tensors = list[Tensor]
Schedule = Callable[[Tree, Any], Any]


class _Gap:
    """In the place of a tensor"""


class Batch(NamedTuple):
    """Describe a window: its batch, with tensors given by their places among the results of `begin`."""

    steps: int
    loss: Any
    places: tuple[int, ...]
    others: tuple[Any, ...]  # leaves that are no tensors; a _Gap where one is
    nesting: Any

    def rebuilt(self, tensors: Sequence[Tensor]) -> Any:
        """Return the batch of other tensors."""
        left = iter(tensors)
        return tree_unflatten([next(left) if other is _Gap else other for other in self.others], self.nesting)


class Pair(NamedTuple):
    """Hold a window and its pullback as one graph.

    It maps (state, θ, step, tables of rates, batch, task; Λ) to (state, Λ, Λ of θ).
    """

    traced: Traced
    states: int  # tensors of the state after the window
    memory: Any  # how the memory after the window is nested


class Functions:
    """Trace what one sweep is made of, for tasks of one shape.

    Args:
        estimator: What `unrolled` returned.
        meta: θ.
        tasks: The tasks that run at a time, stacked; or one task.
        mapped: Whether `tasks` is stacked.
    """

    def __init__(self, estimator: Estimator, meta: Tree, tasks: Any, mapped: bool) -> None:
        self.loop, self.sweep, self.mapped = estimator.loop, estimator.sweep or Sweep(), mapped
        self.theta, self._meta = tree_flatten(meta)
        self.task, self._task = tree_flatten(tasks)
        self.begin = self._traced_begin()
        self.schedules = self._schedules()

    # ---- the start: (θ, task) -> state, batches

    def _traced_begin(self) -> Traced:
        def begin(primals: Tensors, tangents: Tensors) -> Tensors:
            found: Tensors = self._over(self._begin, None, 0)(*self._parted(primals, len(self.theta)))
            return found

        self.batches: list[Batch] = []
        found = traced(begin, [*self.theta, *self.task])
        if found.draws:
            raise UntraceableError("the start of the problem draws random numbers")
        self.batches = [self._placed(batch, found) for batch in self.batches]
        return found

    def _begin(self, theta: Tensors, task: Tensors) -> Tensors:
        state = self._start(theta, task)
        windows = require_windows(self.loop.problem.windows(self._task_of(task), self.loop.lengths))
        results = list(state)
        self.batches.clear()
        for window in windows:
            leaves, nesting = tree_flatten(window.batch)
            tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            places = tuple(range(len(results), len(results) + len(tensors)))
            others = tuple(_Gap if isinstance(leaf, Tensor) else leaf for leaf in leaves)
            self.batches.append(Batch(window.steps, window.loss, places, others, nesting))
            results += tensors
        return results

    def _start(self, theta: Tensors, task: Tensors) -> Tensors:
        state = self.loop.begin(self.meta_of(theta), self._task_of(task))
        if not isinstance(state.step, int):
            raise UntraceableError("the start of the problem counts steps in a tensor")
        params, self.params = tree_flatten(state.params)
        if not tree_leaves(state.memory) and _starts_at_zero(self.loop.inner):
            state = state._replace(memory=(tree_unflatten([torch.zeros_like(p) for p in params], self.params),))
        memory, self.memory = tree_flatten(state.memory)
        self.first, self.number = state.step, len(params)
        self.states = len(params) + len(memory)
        return [*params, *memory]

    def _placed(self, batch: Batch, begun: Traced) -> Batch:
        """The same batch, where a result that is there twice has one place"""
        results: list[Any] = list(begun.graph.graph.output_node().args[0])  # type: ignore[arg-type]
        return batch._replace(places=tuple(results.index(results[i], self.states) for i in batch.places))

    def pull_begin(self, state: Sequence[Tensor]) -> tuple[Traced, list[int]]:
        """Trace the pullback of the start: (θ, task; Λ of the state) -> Λ of θ, and the leaves of θ that it reaches."""

        def one(theta: Tensors, task: Tensors, along: Tensors) -> Tensors:
            return vjp(lambda theta: self._start(theta, task), theta)[1](along)[0]  # type: ignore[no-any-return]

        def pull(primals: Tensors, tangents: Tensors) -> Tensors:
            found = self._over(one, None, 0, 0)(*self._parted(primals, len(self.theta)), tangents)
            return self._summed(found)

        found = traced(pull, [*self.theta, *self.task], state)
        results: list[Any] = list(found.graph.graph.output_node().args[0])  # type: ignore[arg-type]
        by_state = reached(found.graph, is_tangent)
        alive = [i for i, result in enumerate(results) if result in by_state]
        set_outputs(found.graph, [results[i] for i in alive])
        return found, alive

    # ---- a window and its pullback

    def pair(self, k: int, memory: Any, state: Sequence[Tensor], tables: Tensors, batch: Sequence[Tensor]) -> Pair:
        """Trace window k, whose memory before it is nested like `memory`."""
        after: list[Any] = []
        sizes = len(state), len(self.theta), 1, len(tables), len(batch)

        def joint(primals: Tensors, tangents: Tensors) -> Tensors:
            given = self._parted(primals, *sizes)
            one = partial(self._pair, k, memory, after)
            results, by_state, by_theta = self._over(one, 0, None, None, None, 0, 0, 0)(*given, tangents)
            return [*results, *by_state, *self._summed(by_theta)]

        step = torch.zeros((), dtype=torch.float64, device=state[0].device)  # 0.1 / t of a whole number is float32
        like = self._advanced_like(k, memory, state)
        found = traced(joint, [*state, *self.theta, step, *tables, *batch, *self.task], like)
        if found.draws and self.sweep.curvature not in (exact, exact_forward):
            raise UntraceableError("random numbers are drawn, and second-order products are not exact")
        return Pair(found, len(like), after[-1])

    def _advanced_like(self, k: int, memory: Any, state: Sequence[Tensor]) -> list[Tensor]:
        """Tensors as the state after window k has them: an optimizer may make its memory at the first step"""

        def advanced(state: Sequence[Tensor], theta: Sequence[Tensor]) -> Tensors:
            at = self._state(state, memory, self.first)
            after = self.loop.inner.advance(at, at.params, self.meta_of(theta), self.batches[k].steps)
            return [*tree_leaves(after.params), *tree_leaves(after.memory)]

        return results_like(self._over(advanced, 0, None), list(state), self.theta)

    def _pair(
        self, k: int, memory: Any, after: list[Any],
        state: Tensors, theta: Tensors, step: Tensors, tables: Tensors, batch: Tensors, task: Tensors, along: Tensors,
    ) -> tuple[Tensors, Tensors, Tensors]:  # fmt: skip
        window = self._window(k, batch, task)

        def advanced(state: Tensors, theta: Tensors) -> Tensors:
            before, meta = self._state(state, memory, step[0]), self.meta_of(theta)
            gradient = grad(window.loss)(before.params, meta, window.batch)
            moved = self.loop.inner.advance(before, gradient, meta, window.steps)
            leaves, nesting = tree_flatten(moved.memory)
            after.append(nesting)
            return [*tree_leaves(moved.params), *leaves]

        with asked_by(self._looked_up(tables)):
            if self.sweep.curvature in (exact, exact_forward):
                results, pull = vjp(advanced, state, theta)[:2]
                return results, *pull(along)
            results = advanced(state, theta)
            return results, *self._pulled(window, self._state(state, memory, step[0]), theta, along, after[-1])

    def _pulled(
        self, window: Window, state: State, theta: Tensors, along: Tensors, memory: Any
    ) -> tuple[Tensors, Tensors]:
        """Trace a curvature that is not exact as the specification computes it: the gradient is evaluated again."""
        meta, after = self.meta_of(theta), self._state(along, memory, 0)
        point = Checkpointed(state, grad(window.loss)(state.params, meta, window.batch))
        adjoint = Adjoint(after.params, after.memory, hollow_like(meta))
        found = pull_window(self.loop, self.sweep.curvature, window, point, meta, adjoint)
        return [*tree_leaves(found.params), *tree_leaves(found.memory)], tree_leaves(found.meta)

    def _window(self, k: int, batch: Tensors, task: Tensors) -> Window:
        """Window k as the problem has it, so that its loss may know the task, on a batch that is given"""
        window: Window = require_windows(self.loop.problem.windows(self._task_of(task), self.loop.lengths))[k]
        return window._replace(loss=guarded(window.loss).twice, batch=self.batches[k].rebuilt(batch))

    # ---- schedules: rates that are functions, and give numbers

    def _schedules(self) -> list[Schedule]:
        """Return what the inner optimizer asks for at its first step."""
        found: dict[int, Schedule] = {}

        def ask(rate: Schedule, meta: Tree, step: Any) -> Any:
            value = rate(meta, step)
            if is_number(value):
                found[id(rate)] = rate
            return value

        def first(theta: Sequence[Tensor], task: Sequence[Tensor]) -> Tensors:
            state = self._state(self._start(list(theta), list(task)), self.memory, self.first)
            with asked_by(ask):
                self.loop.inner.advance(state, state.params, self.meta_of(theta), 1)
            return []

        results_like(self._over(first, None, 0), self.theta, self.task)
        return list(found.values())

    def _looked_up(self, tables: Tensors) -> Callable[[Schedule, Tree, Any], Any]:
        """Answer for schedules by tables of all steps, which are inputs"""
        known = {id(rate): table for rate, table in zip(self.schedules, tables, strict=True)}

        def ask(rate: Schedule, meta: Tree, step: Any) -> Any:
            if id(rate) not in known:
                return rate(meta, step)
            return known[id(rate)].index_select(0, (step - self.first).long().reshape(1)).reshape(())

        return ask

    # ---- the outer loss

    def outer(self, params: Sequence[Tensor]) -> tuple[Traced, Any]:
        """Trace (φ, θ, task) -> (losses, Λ of φ, Λ of θ, metrics), and how the metrics are nested."""
        nesting: list[Any] = []

        def one(params: Tensors, theta: Tensors, task: Tensors) -> tuple[Any, ...]:
            def value(params: Tensors, theta: Tensors) -> tuple[Tensor, Tensors]:
                given = tree_unflatten(params, self.params), self.meta_of(theta), self._task_of(task)
                loss, metrics = outer_value(self.loop.problem, *given)
                leaves, spec = tree_flatten(dict(metrics))
                nesting.append(spec)
                return loss, leaves

            (by_params, by_theta), (loss, metrics) = grad_and_value(value, (0, 1), has_aux=True)(params, theta)
            return loss, by_params, by_theta, metrics

        def judge(primals: Tensors, tangents: Tensors) -> Tensors:
            parts = self._parted(primals, self.number, len(self.theta))
            loss, by_params, by_theta, metrics = self._over(one, 0, None, 0)(*parts)
            return [loss, *by_params, *self._summed(by_theta), *metrics]

        found = traced(judge, [*params, *self.theta, *self.task])
        return found, nesting[-1]

    # ---- lists and trees

    def _over(self, function: Callable[..., Any], *axes: int | None) -> Callable[..., Any]:
        return vmap(function, axes, randomness="different") if self.mapped else function

    def _summed(self, by_theta: Tensors) -> Tensors:
        return [x.sum(0) for x in by_theta] if self.mapped else by_theta

    def _parted(self, primals: Tensors, *sizes: int) -> list[Tensors]:
        """Cut a list into parts of these sizes and the rest"""
        parts, at = [], 0
        for size in sizes:
            parts.append(list(primals[at : at + size]))
            at += size
        return [*parts, list(primals[at:])]

    def meta_of(self, theta: Sequence[Tensor]) -> Tree:
        """Return θ of its leaves."""
        return tree_unflatten(list(theta), self._meta)

    def _task_of(self, task: Sequence[Tensor]) -> Any:
        return tree_unflatten(list(task), self._task)

    def _state(self, leaves: Sequence[Tensor], memory: Any, step: Any) -> State:
        params = tree_unflatten(list(leaves[: self.number]), self.params)
        return State(params, tree_unflatten(list(leaves[self.number :]), memory), step)


def _starts_at_zero(inner: Any) -> bool:
    """Whether a velocity of zeros before the first step is the same as none: all windows are then one trace"""
    return type(inner) is SGD and inner._remembers and inner.dampening == 0
