"""The reverse sweep of `core.estimators.unrolled` for any module, with no gradient evaluated twice if memory allows.

The specification evaluates the gradient of a window again to differentiate it. Here its graph is kept, and tensors are
in flat lists. One task runs by plain autograd, as the loop that people write by hand: one backward goes through all
windows whose graphs are kept at a time. Tasks that are mapped by vmap run by torch.func, window by window. Whatever is
kept, the same operations run in the same order, so that all schedules give the same bits.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metastep.core.checks import require_one_each
from metastep.core.counting import count_gradient, count_product, kept_bytes, uncounted
from metastep.core.curvature import exact
from metastep.core.derivatives import followable
from metastep.core.estimators import Estimate, Estimator, Final, Solved
from metastep.core.guards import guarded, is_open, undrawn
from metastep.core.random import generators, set_generators
from metastep.core.solvers import ConjugateGradient, Neumann, plus
from metastep.core.torch_errors import explained
from metastep.core.trees import Tree, dot, tree_leaves
from metastep.core.windows import Window, outer_value
from metastep.step.differentiate import Autograd, Functional, Known, Loss, Nesting, Pull, Tensors
from metastep.step.memory import OnDisk, Schedule, Sizes, in_memory, last_to_first
from metastep.step.motion import Adjoint, At, Backend, PullBack, motion_of


def refusal(estimator: Estimator) -> str | None:
    """Return why this engine does not serve a method, or None if it does."""
    served = estimator.sweep or estimator.solved
    if served is None:
        return "the method is no sweep over windows"
    return None if served.curvature is exact else "second-order products are not exact"


@contextmanager
def _casting_anew() -> Iterator[None]:
    """An active autocast would keep what it casts, φ of every window, until it ends"""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


class Passage(NamedTuple):
    """Keep what the sweep needs of a stretch of windows: what pulls Λ back, and the state before if its loss counts."""

    before: At | None
    pull: Callable[[Adjoint], Adjoint]


def examined(estimator: Estimator, meta: Tree, task: Any) -> Sizes:
    """Evaluate the first window of a task, and return what it takes.

    This looks at all that the functions of a problem do, once for each kind of tasks, and leaves nothing behind.
    """
    with uncounted():
        return _guarded(estimator, Schedule(1), Autograd(first=True), Sweep.examine, *followable((meta, task)))  # type: ignore[no-any-return]


def estimate(estimator: Estimator, schedule: Schedule, meta: Tree, task: Any, *, mapped: bool) -> Estimate:
    """Return the estimate of one task.

    Args:
        estimator: What `unrolled` returned: the loop, and what of it is differentiated.
        schedule: What is kept.
        meta: θ: tensors that autograd can follow, as those of the task.
        task: The task.
        mapped: Whether this runs inside of vmap.
    """
    back = Functional() if mapped else Autograd()
    return _guarded(estimator, schedule, back, Sweep.estimate, meta, task)  # type: ignore[no-any-return]


def _guarded(
    estimator: Estimator, schedule: Schedule, back: Backend, run: Callable[["Sweep"], Any], meta: Tree, task: Any
) -> Any:
    with torch.no_grad(), _casting_anew():
        if is_open():  # who runs all tasks has looked
            return run(Sweep(estimator, schedule, back, meta, task))
        with explained(meta), estimator.looks.watched(estimator.loop, estimator.reads, meta, task):
            return run(Sweep(estimator, schedule, back, meta, task))


class Sweep:
    """One sweep over the windows of one task."""

    def __init__(self, estimator: Estimator, schedule: Schedule, back: Backend, meta: Tree, task: Any) -> None:
        self._loop, self._task, self._schedule, self._back = estimator.loop, task, schedule, back
        self._nesting = Nesting(meta)
        self._theta = self._back.watched(self._nesting.leaves(meta))
        self._meta = self._nesting.tree(self._theta)
        self._windows = self._loop.windows(task)
        self._weights = None if estimator.weights is None else require_one_each(estimator.weights, self._windows)
        self._looks = estimator.looks
        self._solved, depth = estimator.solved, estimator.sweep and estimator.sweep.depth
        self._cut = 0 if depth is None else max(0, len(self._windows) - depth)
        self._once = len(self._windows) - self._cut <= schedule.block
        self._start, self._by_start = self._begin()
        self._total: Known = [None] * len(self._theta)

    def estimate(self) -> Estimate:
        """Return the outer loss, the meta-gradient, the metrics and the last state."""
        if self._solved:
            return self._implicit(self._solved)
        at = self._moved(self._start, self._windows[: self._cut])
        final: At | None = None
        for first, passages, end in self._blocks(at):
            if final is None:
                final = end
                loss, adjoint, metrics = self._judge(end, -1)
                length = self._length(adjoint)
                length = length.clamp_min(torch.finfo(length.dtype).tiny)
            del end  # before others of its size are made
            while passages:
                k, before = first + len(passages) - 1, passages[-1].before
                adjoint = passages.pop().pull(adjoint)
                if before is not None and k > 0:  # φ before window k is φ after window k − 1
                    earlier, more, _ = self._judge(before, k - 1)
                    loss, adjoint = loss + earlier, adjoint._replace(params=self._sum(adjoint.params, more.params))
        grown = None if self._cut == len(self._windows) else self._length(adjoint) / length
        assert final is not None
        return Estimate(loss, self._finish(adjoint), metrics, Final(self._motion.state(final)), grown)

    def _implicit(self, solved: Solved) -> Estimate:
        """Do as `core.estimators.implicit` does, with one graph of ∂G/∂φ for all products of the solver."""
        loop, (plain, held) = self._loop, self._unheld(self._windows)
        end = self._moved(self._moved(self._start, plain[:-1], held), plain[-1:], held, once=False)
        loss, adjoint, metrics = self._judge(end, -1)
        if solved.solved_for:
            plain, held = self._unheld(loop._replace(problem=solved.solved_for).windows(self._task))
        params = self._motion.parted(end.params)
        layout = Layout(self._motion.nesting, params, solved.solver, whole=not _is_by_hand(plain[-1]))
        with uncounted():
            _, pull = self._gradient(plain[-1], end, layout.laid)

        def product(direction: Tree) -> Tree:
            count_product()
            h = pull(layout.parts(direction), keep=True)[0]
            product = layout.tree([torch.zeros_like(p) if x is None else x for x, p in zip(h, params, strict=True)])
            return plus(product, held.strength, direction) if held else product

        b = layout.tree(self._motion.parted(adjoint.params))
        warm = {} if loop.solution is None else {"start": layout.tree(self._motion.nesting.leaves(loop.solution))}
        found = solved.solver(product, b, **warm)
        solution = layout.leaves(found)
        count_product()
        self._gather([x if x is None else -x for x in pull(layout.parts(found), to_meta=True)[1]])
        if held:
            self._gather([x if x is None else held.strength * x for x in held.pull(solution)[1]])
        kept = Final(self._motion.state(end), self._motion.nesting.tree(solution))
        return Estimate(loss, self._gathered(), metrics, kept)

    def examine(self) -> Sizes:
        """Look at the first window that is swept, and return what it takes. It leaves nothing behind."""
        before, window = generators(others=True), self._windows[min(self._cut, len(self._windows) - 1)]
        sizes: list[int] = []

        def step() -> Passage:
            passage, after = self._pass([window], self._start)
            sizes[:] = [sum(x.nbytes for x in part) for part in (after.params, after.memory)]
            return passage

        graph = kept_bytes(step) + sizes[0]  # the next window's graph keeps φ, too
        set_generators(before)
        return Sizes(graph, sum(sizes))

    # ---- the ends

    def _begin(self) -> tuple[At, Pull]:
        begun: list[At] = []

        def begin(_: Tensors, theta: Tensors) -> Tensors:
            state = self._loop.begin(self._nesting.tree(theta), self._task)
            params = Nesting(state.params)
            self._motion = motion_of(self._loop.inner, self._back, state.params, params, self._nesting)
            begun[:] = [self._motion.begin(state)]
            return [*begun[0].params, *begun[0].memory]

        start = undrawn(begin, "the start of a problem") if self._back.first else begin
        leaves, pull = self._back.vjp(start, [], self._theta)
        size = len(begun[0].params)
        return begun[0]._replace(params=leaves[:size], memory=leaves[size:]), pull

    def _judge(self, at: At, k: int) -> tuple[Tensor, Adjoint, dict[str, Tensor]]:
        """The outer loss after window k, Λ there, and the metrics; θ may also enter the loss directly"""
        count_gradient()
        params = self._motion.parted(at.params)
        by_hand = getattr(self._loop.problem.outer_loss, "gradients_by_hand", None)
        if by_hand:
            (d_params, d_meta), (loss, metrics) = by_hand(self._motion.nesting.tree(params), self._meta, self._task)
            slopes, by_meta = tree_leaves(d_params), tree_leaves(d_meta)
        else:
            (loss, metrics), slopes, by_meta = self._back.outer(self._outer_loss, params, self._theta)
        if self._weights is not None:
            weight = self._weights[k]
            loss, slopes = weight * loss, [weight * x for x in slopes]
            by_meta = [x if x is None else weight * x for x in by_meta]
        self._gather(by_meta)
        return loss, Adjoint(self._motion.gathered(slopes)), metrics

    def _outer_loss(self, params: Tensors, theta: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        meta = self._nesting.tree(theta)
        return outer_value(self._loop.problem, self._motion.nesting.tree(params), meta, self._task)

    def _finish(self, adjoint: Adjoint) -> Tree:
        """Add Λ₀ ∂s₁/∂θ to what the sweep gathered. If the sweep was cut, Λ serves as Λ₀ without the memory."""
        swept = adjoint.memory and not self._cut
        memory = adjoint.memory if swept else [None] * len(self._start.memory)
        self._gather(self._by_start([*adjoint.params, *(memory or ())])[1])
        return self._gathered()

    def _gathered(self) -> Tree:
        found = [torch.zeros_like(t) if x is None else x for x, t in zip(self._total, self._theta, strict=True)]
        return self._nesting.tree([x.detach() for x in found])

    def _gather(self, by_meta: Sequence[Tensor | None] | None) -> None:
        for i, x in enumerate(by_meta or ()):
            if x is not None:
                total = self._total[i]
                self._total[i] = x if total is None else total + x

    # ---- windows

    def _blocks(self, at: At) -> Iterator[tuple[int, list[Passage], At]]:
        """Blocks of windows, the last one first: the number of the first window, all passages, and the state after"""
        if self._cut == len(self._windows):
            return iter([(self._cut, [], at)])
        blocks = -(-(len(self._windows) - self._cut) // self._schedule.block)
        keep = OnDisk() if self._schedule.on_disk else in_memory
        reduced = self._motion.reduced if self._schedule.block == 1 else None

        def traversed(given: tuple[int, At]) -> tuple[int, list[Passage], At]:
            block, before = given
            return self._cut + block * self._schedule.block, *self._traverse(block, before)

        # A loop with `yield` would hold the states around a block while earlier blocks run.
        return map(traversed, last_to_first(blocks, at, self._schedule.slots, self._run, keep, reduced))

    def _stretches(self, block: int) -> Iterator[list[Window]]:
        """Yield the windows of a block in stretches. One backward goes through each."""
        first = self._cut + block * self._schedule.block
        windows = self._windows[first : first + self._schedule.block]
        if self._back.mapped or self._looks.again or self._weights is not None:
            return ([window] for window in windows)
        return _together(windows)

    def _run(self, first: int, end: int, at: At) -> At:
        """The state after blocks. Their graphs are built too, since without a graph some operators round differently"""
        for block in range(first, end):
            for windows in self._stretches(block):
                at = self._pass(windows, at)[1]
        return at

    def _traverse(self, block: int, at: At) -> tuple[list[Passage], At]:
        passages = []
        for windows in self._stretches(block):
            passage, at = self._pass(windows, at)
            passages.append(passage)
        return passages, at

    def _pass(self, windows: list[Window], at: At) -> tuple[Passage, At]:
        one_by_one = self._back.mapped or _is_by_hand(windows[0])
        pull, after = self._step(windows[0], at) if one_by_one else self._through(windows, at)
        return Passage(None if self._weights is None else at, pull), after

    def _through(self, windows: list[Window], at: At) -> tuple[Callable[[Adjoint], Adjoint], At]:
        """Run a stretch in one graph, as by hand. One backward pulls Λ through it and adds what reaches θ."""
        size, made, engine = len(at.params), list[At](), self._back
        assert isinstance(engine, Autograd)

        def moved(leaves: Tensors, theta: Tensors) -> Tensors:
            now = at._replace(params=leaves[:size], memory=leaves[size:])
            for window in windows:
                count_gradient()
                grads = engine.step(self._loss(window, self._once), self._motion.parted(now.params), theta)
                now = self._motion.move(now, grads, theta, window.steps)
            made[:] = [now._replace(params=[], memory=[])]
            return [*now.params, *now.memory]

        results, back = engine.vjp(moved, [*at.params, *at.memory], self._theta)
        like, others = at.params, len(results) - size

        def pull(later: Adjoint) -> Adjoint:
            for _ in windows:
                count_product()
            memory = later.memory or [None] * others
            found, self._total = back([*later.params, *memory], onto=self._total)
            params = [torch.zeros_like(p) if x is None else x for x, p in zip(found, like, strict=False)]
            return Adjoint(params, found[size:])

        return pull, made[0]._replace(params=results[:size], memory=results[size:])

    def _step(self, window: Window, at: At) -> tuple[Callable[[Adjoint], Adjoint], At]:
        """Run one window in two halves: the gradient, and the steps that share it."""
        grads, by_gradient = self._gradient(window, at)
        after, by_steps = self._motion.advance(at, grads, self._theta, window.steps)
        return partial(self._pull, by_gradient, by_steps), after

    def _moved(self, at: At, windows: list[Window], held: "Held | None" = None, once: bool = True) -> At:
        """Return the state after windows that are not swept. `once` says that nobody returns to them."""
        for window in windows:
            grads = self._slope(window, at, held, once)
            at = self._motion.move(at, grads, self._theta, window.steps)
        return at

    def _gradient(self, window: Window, at: At, laid: Callable[[Tensors], Tensors] = list) -> tuple[Tensors, Pull]:
        count_gradient()
        params = self._motion.parted(at.params)
        if _is_by_hand(window):
            return self._by_hand(window, params)
        return self._back.gradient(self._loss(window), params, self._theta, laid)

    def _slope(self, window: Window, at: At, held: "Held | None", once: bool) -> Tensors:
        if _is_by_hand(window):
            return self._gradient(window, at)[0]
        count_gradient()
        params = self._motion.parted(at.params)
        found = self._back.slope(self._loss(window, once), params, self._theta)
        if held is None:
            return found
        return [torch.add(g, p - p0, alpha=held.strength) for g, p, p0 in zip(found, params, held.start, strict=True)]

    def _unheld(self, windows: list[Window]) -> tuple[list[Window], "Held | None"]:
        """Return windows without the term that pulls φ back to its start, and that term, which needs no graph."""
        parts: list[Any] = [getattr(getattr(window.loss, "loss", None), "parts", None) for window in windows]
        first = parts[0]
        if first is None or any(part is None or part.strength != first.strength for part in parts):
            return windows, None
        nesting, tree = self._motion.nesting, self._nesting.tree
        start, pull = self._back.vjp(lambda _, theta: nesting.leaves(first.start(tree(theta))), [], self._theta)
        plain = [window._replace(loss=guarded(part.loss)) for window, part in zip(windows, parts, strict=True)]
        return plain, Held(first.strength, start, pull)

    def _loss(self, window: Window, once: bool = False) -> Loss:
        inner: Any = window.loss
        value = inner.once if once and not self._back.mapped else inner.twice
        nested, theta_of, batch = self._motion.nesting.tree, self._nesting.tree, window.batch
        if not self._back.mapped:  # θ is in its leaves
            return lambda params, theta: value(nested(params), self._meta, batch)

        def loss(params: Tensors, theta: Tensors) -> Tensor:
            return value(nested(params), theta_of(theta), batch)  # type: ignore[no-any-return]

        return loss

    def _by_hand(self, window: Window, params: Tensors) -> tuple[Tensors, Pull]:
        """A loss that brings its own derivatives"""
        nesting, loss, batch = self._motion.nesting, window.loss, window.batch

        def pull(
            along: Sequence[Tensor | None],
            keep: bool = False,
            onto: Sequence[Tensor | None] = (),
            to_meta: bool = False,
        ) -> tuple[Known, Known]:
            direction = nesting.tree(list(along))
            h, c = loss.product_by_hand(nesting.tree(params), self._meta, batch, direction)  # type: ignore[attr-defined]
            return tree_leaves(h), tree_leaves(c)

        gradient = loss.gradient_by_hand(nesting.tree(params), self._meta, batch)  # type: ignore[attr-defined]
        return tree_leaves(gradient), pull

    def _pull(self, by_gradient: Pull, by_steps: PullBack, adjoint: Adjoint) -> Adjoint:
        """One step of the recursion: Λ ∂Φ̂/∂s and Λ ∂Φ̂/∂θ, with one second-order product"""
        count_product()
        before, grads, by_meta = by_steps(adjoint)
        h, c = by_gradient(grads)
        self._gather(by_meta)
        self._gather(c)
        filled = [torch.zeros_like(g) if x is None else x for x, g in zip(h, grads, strict=True)]
        return before._replace(params=self._sum(before.params, self._motion.gathered(filled)))

    def _length(self, adjoint: Adjoint) -> Tensor:
        """‖Λ‖ in φ"""
        slopes, at_once = adjoint.params, not self._back.mapped
        each = torch._foreach_norm(slopes) if at_once else [torch.linalg.vector_norm(x) for x in slopes]
        length: Tensor = torch.linalg.vector_norm(torch.stack([x.to(each[0].device) for x in each]))
        return length

    def _sum(self, a: Tensors, b: Tensors) -> Tensors:
        if self._back.mapped:
            return [x + y for x, y in zip(a, b, strict=True)]
        return list(torch._foreach_add(a, b))


def _is_by_hand(window: Window) -> bool:
    return hasattr(window.loss, "gradient_by_hand")


def _together(windows: list[Window]) -> Iterator[list[Window]]:
    for by_hand, alike in groupby(windows, _is_by_hand):
        stretch = list(alike)
        yield from ([window] for window in stretch) if by_hand else [stretch]


class Held(NamedTuple):
    """Hold what pulls φ back: + ½ · strength · ‖φ − start‖², and what pulls cotangents of the start back to θ."""

    strength: float
    start: Tensors
    pull: Pull


class Layout:
    """How a linear system is handed to its solver: as one vector to ours, as a tree to a user's own.

    whole: The gradient that it comes of is one vector, too.
    """

    def __init__(self, nesting: Nesting, like: Tensors, solver: Any, whole: bool) -> None:
        self._nesting, self._shapes, self._sizes = nesting, [x.shape for x in like], [x.numel() for x in like]
        plain = type(solver) is ConjugateGradient and solver.dot is dot
        self._together = plain or type(solver) is Neumann
        self._whole = whole and self._together

    def tree(self, leaves: Tensors) -> Tree:
        return torch.cat([x.reshape(-1) for x in leaves]) if self._together else self._nesting.tree(leaves)

    def leaves(self, tree: Tree) -> Tensors:
        if not self._together:
            return self._nesting.leaves(tree)
        return [x.view(shape) for x, shape in zip(torch.split(tree, self._sizes), self._shapes, strict=True)]

    def laid(self, gradient: Tensors) -> Tensors:
        """Return what products are taken of."""
        return [self.tree(gradient)] if self._whole else gradient

    def parts(self, direction: Tree) -> Tensors:
        """Return a direction in the same parts."""
        return [direction] if self._whole else self.leaves(direction)
