"""Which window an inner loop bears: what can be measured of it before anything is trained. It decides nothing."""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch

from metastep.core.checks import require_dynamics, require_problem
from metastep.core.counting import uncounted
from metastep.core.curvature import exact
from metastep.core.derivatives import followable
from metastep.core.estimators import Estimator, outer_adjoint, pull_start, pull_window, unrolled
from metastep.core.modules import tree_of
from metastep.core.optimizers import State
from metastep.core.stability import LONGEST, Rule, largest_curvature, longest_stable, rule_of
from metastep.core.tasks import require_order, stack, task_count
from metastep.core.torch_errors import explained
from metastep.core.trees import Tree, dot, doubled, map_tree, norm, ratio, subtract
from metastep.core.windows import (
    Checkpointed,
    InnerLoop,
    Problem,
    Steps,
    Window,
    inner_loop,
    task_gradient,
    window_lengths,
)

# ---- what `suggest` reports: rows of windows and of curvatures, a sentence, and when they mislead


STUCK = 100.0
"""On Omniglot, runs with a growth of 5 to 25 learned without clipping; those above 100 stayed at chance."""

SHORT = (
    "The loop has {steps} steps. In so short a loop the curvature may fall before an unstable window can do harm, so "
    "the rule of stability is too strict: trust cosine and growth."
)
RISING = (
    "The curvature rises. The bound allows for as much again, but a net may sharpen further: take it as a rough guide, "
    "and prefer a shorter window."
)
ADAPTIVE = (
    "{name} is judged by its second moment at the step that is looked at. The moment moves later, so the rule is a "
    "rough guide."
)
NO_RULE = "There is no rule of stability for {name} with these options."
FIRST = "Cosine, growth, time and shape are those of the first {looked} of {steps} steps."


class WindowRow(NamedTuple):
    """Say what a window of some steps does to the meta-gradient.

    Args:
        window: Steps that share a gradient.
        cosine: Of the meta-gradient with the exact one.
        growth: ‖Λ₀‖ / ‖Λ_T‖ of its sweep, the median over tasks.
        seconds: Of one meta-gradient, for all tasks one after the other.
    """

    window: int
    cosine: float
    growth: float
    seconds: float


class CurvatureRow(NamedTuple):
    """Say how curved the inner loss is at a step, and what window that bears.

    Args:
        step: Inner steps before.
        curvature: The largest eigenvalue of the Hessian (preconditioned if the optimizer adapts), the median of tasks.
        window: The longest stable window, or None without a rule for the optimizer. If the curvature of a long loop has
            risen, the last row's window allows for as much again.
    """

    step: int
    curvature: float
    window: int | None


@dataclass(frozen=True)
class Suggestion:
    """Report what windows do to one inner loop. Printed, it is two tables, a sentence, and where it may fail.

    Args:
        windows: One row for each window.
        curvatures: One row for each step that was looked at.
        steps: Inner steps of the loop.
        shapes: Shapes of windows at equal cost, and the sum of gradient differences within their windows.
        fails: When these numbers mislead.
    """

    windows: tuple[WindowRow, ...]
    curvatures: tuple[CurvatureRow, ...]
    steps: int
    shapes: dict[tuple[int, ...], float]
    fails: tuple[str, ...]

    @property
    def longest(self) -> int | None:
        """The longest window that is stable at every step that was looked at; None without a rule."""
        found = [row.window for row in self.curvatures if row.window is not None]
        return min(found) if found else None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape with the smallest gradient differences within its windows."""
        return min(self.shapes, key=lambda shape: self.shapes[shape]) if self.shapes else None

    @property
    def sentence(self) -> str:
        """Say in words what the numbers mean."""
        return " ".join(filter(None, (self._of_stability(), self._of_growth(), self._of_shape())))

    def _of_stability(self) -> str:
        if self.longest is None:
            return ""
        first, last = self.curvatures[0], self.curvatures[-1]
        return (
            f"By the curvature, {_stable(first.window)} at step {first.step}, and {_stable(last.window)} at step "
            f"{last.step}."
        )

    def _of_growth(self) -> str:
        stuck = [str(row.window) for row in self.windows if not row.growth <= STUCK]
        if not stuck:
            return ""
        return (
            f"With windows of {', '.join(stuck)} the sweep makes gradients over {STUCK:g} times as long: clip the "
            "meta-gradient (clip = 0.5 to 2), warm up by first order, or lower the inner rate."
        )

    def _of_shape(self) -> str:
        if self.shape is None or len(set(self.shape)) == 1:
            return ""
        return f"At equal cost, {list(self.shape)} reuses gradients that change less than those of equal windows."

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{'window':>6} {'cosine':>7} {'growth':>9} {'seconds':>8}"
        for row in self.windows:
            yield f"{row.window:>6} {row.cosine:>7.3f} {row.growth:>9.3g} {row.seconds:>8.3g}"
        yield f"\n{'step':>6} {'curvature':>9} {'longest stable window':>21}"
        for at in self.curvatures:
            yield f"{at.step:>6} {at.curvature:>9.3g} {'–' if at.window is None else at.window:>21}"
        yield f"\n{self.sentence}"
        yield from (f"- {reason}" for reason in self.fails)


def _stable(window: int | None) -> str:
    if not window or window == 1:
        return "only single steps are stable" if window else "not even single steps are stable"
    return f"windows of up to {window}{' or more' if window == LONGEST else ''} steps are stable"


WINDOWS = (1, 2, 4, 8)
LOOKED = 8
"""Steps at the start whose meta-gradients are looked at, so that a task takes at most 60 gradients and products."""
RISES = 1.1  # times the first curvature: more is said to rise
PRODUCTS = 6  # with the Hessian, at each step that is looked at
AHEAD = 12  # windows that a longer loop is followed for, to see what becomes of the curvature


def suggest(problem: Problem, inner: Any, *, steps: Steps, meta: Any, tasks: Any) -> Suggestion:
    """Measure what windows do to an inner loop, before anything is trained.

    It decides nothing. For windows of 1, 2, 4 and 8 steps it gives the cosine with the exact meta-gradient, the growth
    of the sweep, and the time. At some steps it gives the largest curvature and the longest stable window. A task takes
    at most 60 gradients and second-order products: of a longer loop, meta-gradients are those of the first 8 steps,
    and the curvature is followed somewhat further.

    Args:
        problem: What is learned.
        inner: The inner optimizer.
        steps: Inner steps of the loop, or a list of windows.
        meta: θ: a tree of tensors or a module.
        tasks: Stacked tasks, or a list of tasks of one shape. A few are enough.

    Returns:
        A `Suggestion`, which prints as tables.

    Raises:
        MetastepError: The arguments do not fit together.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <torch...>
        >>> net = torch.nn.Linear(2, 1)
        >>> problem = ms.few_shot(net, torch.nn.functional.mse_loss)
        >>> batch = torch.randn(4, 6, 2), torch.randn(4, 6, 1)  # 4 tasks of 6 examples
        >>> found = ms.suggest(problem, ms.SGD(lr=0.1), steps=8, meta=net, tasks=ms.Task(batch, batch))
        >>> [row.window for row in found.windows]
        [1, 2, 4, 8]
        >>> found.longest > 1
        True
    """
    require_problem(problem)
    require_dynamics(inner)
    require_order(meta, tasks)
    meta, tasks = tree_of(meta), stack(tasks) if isinstance(tasks, list) else tasks
    total = sum(window_lengths(steps))
    looked = min(total, LOOKED)
    each = [map_tree(lambda leaf, i=i: leaf[i], tasks) for i in range(task_count(tasks))]
    with explained(meta):
        walks: list[Walk] = [
            _counted(i, partial(_walk, problem, inner, looked, total, meta, task)) for i, task in enumerate(each)
        ]
        rows = _window_rows(problem, inner, looked, meta, each, walks)
    curvatures = _curvature_rows(walks, inner)
    shapes = {shape: sum(walk.shapes[shape] for walk in walks) / len(walks) for shape in walks[0].shapes}
    return Suggestion(rows, curvatures, total, shapes, _fails(inner, looked, total, curvatures))


def _counted(i: int, function: Callable[[], Any]) -> Any:
    """Count what the first task takes, as everywhere"""
    with uncounted() if i else nullcontext():
        return function()


# ---- one task


class Sample(NamedTuple):
    """The meta-gradient of one task, its growth, and the seconds that it took."""

    grad: Tree
    growth: float
    seconds: float


class Walk(NamedTuple):
    """What the path of single steps shows of one task: its meta-gradient, curvatures by step, and shapes."""

    exact: Sample
    curvatures: dict[int, float]
    shapes: dict[tuple[int, ...], float]


def _walk(problem: Problem, inner: Any, looked: int, steps: int, meta: Tree, task: Any) -> Walk:
    with torch.no_grad():
        meta, task = followable((meta, task))
        loop, began = inner_loop(problem, inner, looked), time.perf_counter()
        points, state, windows = [], loop.begin(meta, task), loop.windows(task)
        for window in windows:
            points.append(Checkpointed(state, task_gradient(window, state.params, meta)))
            state = inner.advance(state, points[-1].grad, meta, 1)
        found = _swept(loop, windows, points, state, meta, task)
        sample = Sample(*found, time.perf_counter() - began)
        rule, gradients = rule_of(inner), [point.grad for point in points]
        first = 1 if rule and rule.scale else 0  # no second moment before the first step
        places = {first, looked // 2, looked - 1} if steps <= LOOKED else {looked - 1}
        curvatures = {k: _curvature(windows[k], points[k], meta, rule) for k in sorted(places) if first <= k < looked}
        if steps > looked:
            # Half of the bound: at the bound itself the path bounces, which keeps the curvature from rising as it will.
            half = longest_stable(rule.like, curvatures[looked - 1]) // 2 if rule else 1
            curvatures |= _ahead(problem, inner, min(half, -(-(steps - looked) // AHEAD)), state, meta, task)
    return Walk(sample, curvatures, {shape: _differences(gradients, shape) for shape in _shapes(looked)})


def _swept(
    loop: InnerLoop, windows: list[Window], points: list[Checkpointed], state: State, meta: Tree, task: Any
) -> tuple[Tree, float]:
    """The meta-gradient of single steps and its growth, as `unrolled` has them"""
    _, adjoint, _ = outer_adjoint(loop, state, meta, task)
    length = norm(adjoint.params)
    for window, point in zip(reversed(windows), reversed(points), strict=True):
        adjoint = pull_window(loop, exact, window, point, meta, adjoint)
    return pull_start(loop, meta, task, adjoint), float(ratio(norm(adjoint.params), length))


def _ahead(problem: Problem, inner: Any, window: int, state: State, meta: Tree, task: Any) -> dict[int, float]:
    """The curvature further on, where windows that are stable so far lead"""
    loop = inner_loop(problem, inner, [max(1, window)] * (AHEAD + 1))
    windows, rule = loop.windows(task), rule_of(inner)
    state = loop.run(windows[:AHEAD], state, meta)
    point = Checkpointed(state, task_gradient(windows[AHEAD], state.params, meta))
    return {int(state.step): _curvature(windows[AHEAD], point, meta, rule)}


def _curvature(window: Window, point: Checkpointed, meta: Tree, rule: Rule | None) -> float:
    scale = rule.scale(point.state) if rule and rule.scale else None
    return largest_curvature(lambda v: exact(window, point.state.params, meta, v)[0], point.grad, scale, PRODUCTS)


def _shapes(looked: int) -> list[tuple[int, ...]]:
    """Windows that get longer, are equal, and get shorter, at the cost of windows of two"""
    half = looked // 2
    if half < 3:
        return []
    longer = (1, *[2] * (half - 2), 3 + looked % 2)
    return [(*[2] * (half - 1), 2 + looked % 2), longer, longer[::-1]]


def _differences(gradients: list[Tree], shape: tuple[int, ...]) -> float:
    """Σ over windows and steps of ‖the gradient of the step − that of the window‖"""
    total, first = 0.0, 0
    for steps in shape:
        total += sum(float(norm(subtract(gradients[first + j], gradients[first]))) for j in range(1, steps))
        first += steps
    return total


# ---- over tasks


def _sample(estimator: Estimator, meta: Tree, task: Any) -> Sample:
    began = time.perf_counter()
    found = estimator.unchecked(meta, task)
    assert found.growth is not None
    return Sample(found.grad, float(found.growth), time.perf_counter() - began)


def _window_rows(
    problem: Problem, inner: Any, looked: int, meta: Tree, each: list[Any], walks: list[Walk]
) -> tuple[WindowRow, ...]:
    samples = {1: [walk.exact for walk in walks]}
    for n in (n for n in WINDOWS[1:] if n <= looked):
        estimator = unrolled(inner_loop(problem, inner, looked, n))
        samples[n] = [_counted(i, partial(_sample, estimator, meta, task)) for i, task in enumerate(each)]
    sums = {n: _total(found) for n, found in samples.items()}
    return tuple(
        WindowRow(
            n, float(dot(sums[n], sums[1]) / (norm(sums[n]) * norm(sums[1]))), median(s.growth for s in found),
            len(found) * median(s.seconds for s in found),  # the first call of all looks at the modules
        )
        for n, found in samples.items()
    )  # fmt: skip


def _total(samples: list[Sample]) -> Tree:
    """The sum of the meta-gradients"""
    return map_tree(lambda *parts: torch.stack(parts).sum(0), *(doubled(sample.grad) for sample in samples))


def _curvature_rows(walks: list[Walk], inner: Any) -> tuple[CurvatureRow, ...]:
    rule = rule_of(inner)
    columns = zip(*(walk.curvatures.items() for walk in walks), strict=True)  # tasks may be followed to other steps
    medians = [(int(median(k for k, _ in column)), median(c for _, c in column)) for column in columns]
    expected = [max(c, 2 * c - medians[0][1]) if k >= LOOKED else c for k, c in medians]  # it rises as much again
    return tuple(
        CurvatureRow(k, c, rule and longest_stable(rule.like, later))
        for (k, c), later in zip(medians, expected, strict=True)
    )


def _fails(inner: Any, looked: int, steps: int, curvatures: tuple[CurvatureRow, ...]) -> tuple[str, ...]:
    rule, name = rule_of(inner), type(inner).__name__
    rises = steps > looked and curvatures[-1].curvature > RISES * curvatures[0].curvature
    reasons = {
        SHORT.format(steps=steps): steps <= LOOKED and rule is not None,
        RISING: rule is not None and rises,
        ADAPTIVE.format(name=name): bool(rule and rule.scale),
        NO_RULE.format(name=name): rule is None,
        FIRST.format(looked=looked, steps=steps): steps > looked,
    }
    return tuple(reason for reason, holds in reasons.items() if holds)
