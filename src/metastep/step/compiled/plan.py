"""A reverse sweep as a plan: two compiled functions for each kind of window, and a loop over lists of tensors."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metastep.core.checks import require_one_each
from metastep.core.counting import count_gradient, count_product
from metastep.core.derivatives import is_captured
from metastep.core.estimators import Estimator
from metastep.core.rates import rate_at
from metastep.core.trees import Tree, map_tree, norm_of, ratio, tree_unflatten
from metastep.step.capture import Captured, Record
from metastep.step.compiled.frozen import alike
from metastep.step.compiled.graphs import Traced, UntraceableError, made_of, set_outputs
from metastep.step.compiled.inductor import Build
from metastep.step.compiled.products import choose_products
from metastep.step.compiled.tracing import Functions
from metastep.step.compiled.window import WindowKind, compiled_window

LONG = 16  # windows: in fewer, an operation for all of them costs more than computing it in each
KINDS = 4  # of windows: one whose batch holds numbers, or whose optimizer looks at the step, would be each its own
Tensors = list[Tensor]


class DrawsError(Exception):
    """Says that a loss draws random numbers, whose order depends on how many tasks run at a time."""


class Found(NamedTuple):
    """Hold what a plan gives: the loss of each task, the sum of their meta-gradients, metrics, and growth."""

    losses: Tensor
    grads: Tensors
    metrics: dict[str, Tensor]
    growth: Tensor | None


class Judged(NamedTuple):
    """Hold the outer loss of each task, its derivatives, and metrics."""

    losses: Tensor
    by_params: Tensors
    by_theta: Tensors
    metrics: dict[str, Tensor]


class Passage(NamedTuple):
    """Keep what the way back needs of a window: what was saved, and φ before it."""

    kind: WindowKind
    saved: Tensors
    params: Tensors


class Plan:
    """Run a sweep for θ and tasks shaped and laid out as those that it was made for, on their device.

    Args:
        estimator: What `unrolled` returned.
        meta: θ.
        tasks: The tasks that run at a time, stacked; or one task.
        mapped: Whether `tasks` is stacked.
        build: What makes a function of a graph: `inductor.built`, or `inductor.interpreted`.
        draws: Whether losses may draw random numbers.
        room: Bytes that windows may keep for the way back.

    Raises:
        DrawsError: They do, and may not.
        UntraceableError: The sweep is no graph, or too many.
    """

    def __init__(
        self,
        estimator: Estimator,
        meta: Tree,
        tasks: Any,
        mapped: bool,
        build: Build,
        draws: bool = False,
        room: float = float("inf"),
    ) -> None:
        self._build, self._draws, self._made = build, draws, Functions(estimator, meta, tasks, mapped)
        made, windows, depth = self._made, self._made.batches, self._made.sweep.depth
        self.device = made.theta[0].device
        self._weights = None if estimator.weights is None else require_one_each(estimator.weights, windows)
        self._cut = 0 if depth is None else max(0, len(windows) - depth)
        taken = [made.first + sum(window.steps for window in windows[:k]) for k in range(len(windows))]
        self._counts = [torch.tensor(float(k), dtype=torch.float64, device=self.device) for k in taken]
        self._constant: dict[int, Tensor] = {}
        state, batches = self._begin(made.theta, made.task)
        self._constant = self._without_constants(state)
        self._memory = [torch.zeros_like(x) for x in state[made.number :]]
        self._kinds = self._compiled_windows(state, batches)
        _require_room(sum(kind.saved for kind in self._kinds[self._cut :]), room)
        end = self._kinds[-1].after if self._kinds else state
        self._rest = [torch.zeros_like(x) for x in end[made.number :]]  # Λ of the memory after the last window
        self._ahead = [kind.ahead(count) for kind, count in zip(self._kinds, self._counts, strict=True)]
        self._outer = self._compiled_outer(state[: made.number])
        self._pull, self._reached = made.pull_begin(state)

    @property
    def nodes(self) -> int:
        """Operations in the graphs of all kinds of windows: compiling takes time by their number."""
        return sum({id(kind): kind.nodes for kind in self._kinds}.values())

    @property
    def not_replayed(self) -> str | None:
        """Why calls cannot be captured and replayed, or None if they can."""
        parts: list[Any] = [*self._kinds, self._judge, self._made.begin, self._pull]
        if any(part.draws for part in parts):
            return "random numbers are drawn"
        if any(held.device != self.device for part in parts for held in part.held):
            return "a loss holds tensors of another device"
        return None

    # ---- compile

    def _compiled_windows(self, state: Tensors, batches: list[Tensors]) -> list[WindowKind]:
        """One for each window; those that are alike share it"""
        made, table = self._made, self.tables(self._made.theta)
        known: list[WindowKind] = []
        kinds, memory = [], made.memory
        for k, batch in enumerate(batches):
            before = memory, len(state)
            kind = next((kind for kind in known if kind.before == before and self._alike(kind.first, k, batches)), None)
            if kind is None:
                if len(known) == KINDS:
                    raise UntraceableError(f"there are more than {KINDS} kinds of windows")
                pair = made.pair(k, memory, state, table, batch)
                self._require_draws(pair.traced)
                given = [*state, *made.theta, self._counts[k], *table, *batch, *made.task]
                place, swept = len(state) + len(made.theta), self._cut < len(batches)
                same = self._same(len(state), len(table), len(batch))
                kind = compiled_window(k, before, pair, given, place, same, self._build, swept)
                known.append(kind)
            kinds.append(kind)
            memory, state = kind.memory, kind.after
        return kinds

    def _same(self, states: int, tables: int, batch: int) -> list[int]:
        """The places of a window's inputs that are the same in all windows of a call, if it is a long one"""
        made = self._made
        if len(made.batches) < LONG:
            return []
        is_one = len({batch.places for batch in made.batches}) == 1
        kinds = [(states, False), (len(made.theta), True), (1, False), (tables, True), (batch, is_one)]
        same = [is_same for number, is_same in [*kinds, (len(made.task), True)] for _ in range(number)]
        return [i for i, is_same in enumerate(same) if is_same]

    def _alike(self, i: int, k: int, batches: list[Tensors]) -> bool:
        a, b = self._made.batches[i], self._made.batches[k]
        same = (a.steps, a.others, a.nesting) == (b.steps, b.others, b.nesting)
        return same and _layouts(batches[i]) == _layouts(batches[k]) and alike(a.loss, b.loss)

    def _compiled_outer(self, params: Tensors) -> Callable[[Tensors, Tensors, Tensors], Sequence[Tensor]]:
        found, self._metrics = self._made.outer(params)
        self._require_draws(found)
        choose_products(found.graph)
        _, held, draws = self._judge = found
        examples = [*params, *self._made.theta, *self._made.task, *held, *(draw() for draw in draws)]
        run = self._build(found.graph, examples, None)
        return lambda params, theta, task: run([*params, *theta, *task, *held, *(draw() for draw in draws)])

    def _require_draws(self, found: Traced) -> None:
        if found.draws and not self._draws:
            raise DrawsError

    # ---- run

    def __call__(self, theta: Tensors, task: Tensors) -> Found:
        """Return the estimate of these tasks."""
        self.count()
        return self.run(theta, task, self.tables(theta))

    def count(self) -> None:
        """Count the gradients and products of a call."""
        swept = len(self._kinds) - self._cut
        for _ in range(len(self._kinds) + 1 + (0 if self._weights is None else swept - 1)):
            count_gradient()
        for _ in range(swept):
            count_product()

    def run(self, theta: Tensors, task: Tensors, tables: Tensors) -> Found:
        """Return the estimate of these tasks by rates that `tables` gave. Nothing in it waits for the device."""
        passages, state = self._forward(theta, task, tables)
        losses, by_params, total, metrics = self._judged(state[: self._made.number], theta, task)
        along = [*by_params, *self._rest]
        weights = self._weights
        if weights is not None:
            losses, along, total = weights[-1] * losses, _scaled(weights[-1], along), _scaled(weights[-1], total)
        size, cut = len(by_params), len(passages)
        length = self._length(along[:size])
        while passages:
            kind, saved, params = passages.pop()
            along = kind.backward(saved, along, total)
            if weights is not None and passages:  # φ before window k is φ after window k − 1
                weight, earlier = weights[len(passages) - 1], self._judged(params, theta, task)
                losses = losses + weight * earlier.losses
                along[: len(params)] = _added(along[: len(params)], _scaled(weight, earlier.by_params))
                total = _added(total, _scaled(weight, earlier.by_theta))
        grown = ratio(self._length(along[:size]), length) if cut else None
        return Found(losses, self._with_start(theta, task, along, total), metrics, grown)

    def _length(self, along: Tensors) -> Tensor:
        """‖Λ‖ in φ, of each task if there are several"""
        if not self._made.mapped:
            return norm_of(along)
        lengths: Tensor = torch.linalg.vector_norm(torch.cat([x.flatten(1) for x in along], 1), dim=1)
        return lengths

    def _forward(self, theta: Tensors, task: Tensors, tables: Tensors) -> tuple[list[Passage], Tensors]:
        """Run the windows. Keep what the way back needs of those that are swept."""
        (state, batches), passages = self._begin(theta, task), []
        once: dict[int, Sequence[Tensor]] = {}
        for k, kind in enumerate(self._kinds):
            params = state[: self._made.number]
            given = [*state, *theta, self._counts[k], *tables, *batches[k], *task]
            if kind.first not in once:
                once[kind.first] = kind.once(given)
            state, saved = kind.forward(given, [*self._ahead[k], *once[kind.first]])
            if k >= self._cut:
                passages.append(Passage(kind, saved, params))
        return passages, state

    def _begin(self, theta: Tensors, task: Tensors) -> tuple[Tensors, list[Tensors]]:
        """The state before the first window, and the batches of all windows; no more than views and copies mostly"""
        made = self._made
        results = made.begin.graph.forward(*theta, *task, *made.begin.held)
        state = [self._constant[i] if x is None else x.contiguous() for i, x in enumerate(results[: made.states])]
        return state, [[results[i] for i in b.places] for b in made.batches]

    def _without_constants(self, state: Tensors) -> dict[int, Tensor]:
        """Return what the start has of no input, such as zeros, and leave it out of the graph."""
        graph, constant = self._made.begin.graph, made_of(self._made.begin.graph, [])
        results: list[Any] = list(graph.graph.output_node().args[0])  # type: ignore[arg-type]
        found = {i: x for i, x in enumerate(state) if results[i] in constant}
        set_outputs(graph, [None if i in found else x for i, x in enumerate(results)])
        return found

    def _judged(self, params: Tensors, theta: Tensors, task: Tensors) -> Judged:
        losses, *rest = self._outer(params, theta, task)
        a, b = len(params), len(params) + len(theta)
        return Judged(losses, list(rest[:a]), list(rest[a:b]), tree_unflatten(list(rest[b:]), self._metrics))

    def _with_start(self, theta: Tensors, task: Tensors, along: Tensors, total: Tensors) -> Tensors:
        """Add what the start hands on to θ. If the sweep was cut, memory is no part of it."""
        if not self._reached:
            return total
        along = [*along[: self._made.number], *self._memory] if self._cut else along
        found = self._pull.graph.forward(*theta, *task, *along, *self._pull.held)
        total = list(total)
        for i, x in zip(self._reached, _added([total[i] for i in self._reached], found), strict=True):
            total[i] = x
        return total

    def tables(self, theta: Tensors) -> Tensors:
        """Return the rates of all steps. Schedules are asked at every call."""
        if not self._made.schedules:
            return []
        meta, first = self._made.meta_of(theta), self._made.first
        steps = range(first, first + sum(window.steps for window in self._made.batches))
        rows = [[rate_at(rate, meta, step) for step in steps] for rate in self._made.schedules]
        return [torch.tensor(row, dtype=torch.float64, device=self.device) for row in rows]


def _require_room(size: int, room: float) -> None:
    """Refuse to keep what does not fit; autograd keeps less where it has to"""
    if size > room:
        raise UntraceableError(f"its windows would keep {size / 1e6:.3g} MB, and {room / 1e6:.3g} MB may be kept")


def _scaled(factor: Any, tensors: Tensors) -> Tensors:
    return [factor * x for x in tensors]


def _added(a: Tensors, b: Tensors) -> Tensors:
    return list(torch._foreach_add(a, b))


def _layouts(tensors: Sequence[Tensor]) -> list[Any]:
    return [(x.shape, x.stride(), x.dtype) for x in tensors]


# ---- a plan on a GPU: a call is captured in a CUDA graph, and later ones are replayed without the host


WARM = 2  # calls before the one that is captured: a step that is itself captured makes as many first


class Replayed:
    """Run a plan, and capture its third call.

    A replay reads θ, the tasks, the rates of all steps, and the tensors that losses hold. Other values that a loss
    reads are frozen, as they are by a trace.

    Args:
        plan: The plan.
        record: What captures a call.
    """

    def __init__(self, plan: Plan, record: Record) -> None:
        self.plan, self._calls = plan, 0
        self._refused = plan.not_replayed
        self._unit = Captured(lambda state, *given: (state, _tensors(plan.run(*given))), record)

    @property
    def nodes(self) -> int:
        """Operations in its graphs."""
        return self.plan.nodes

    @property
    def path(self) -> str:
        """Say how calls are run."""
        if self._refused:
            return f"not captured: {self._refused}"
        return f"{self._unit.path} in a CUDA graph" if self._unit.path == "captured" else self._unit.path

    def __call__(self, theta: list[Tensor], task: list[Tensor]) -> Found:
        """Return the estimate of these tasks."""
        self._calls += 1
        if self._refused or self._calls <= WARM or is_captured():
            return self.plan(theta, task)
        self.plan.count()
        with torch.cuda.device_of(theta[0]):  # type: ignore[no-untyped-call]
            found: Found = self._unit((), theta, task, self.plan.tables(theta))[1]
        copied: Found = map_tree(torch.clone, found)  # the next replay writes over it
        return copied._replace(growth=copied.growth if isinstance(copied.growth, Tensor) else None)


def _tensors(found: Found) -> Any:
    """Return a plan's results without None."""
    return found if found.growth is not None else found._replace(growth=())  # type: ignore[arg-type]
