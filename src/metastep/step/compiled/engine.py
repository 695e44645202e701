"""The compiled engine: sweeps as plans, compared with autograd at calls 1, 2, 4, 8, …

What cannot be traced, differs from autograd, or needs more than four plans runs as without `compile=True`, and the
path says why. On a GPU, a plan takes all tasks at once, and its third call is captured in a CUDA graph.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metastep.core.checks import require_other_names
from metastep.core.derivatives import is_captured, is_transformed
from metastep.core.estimators import Estimate, Estimator
from metastep.core.random import Generators, generators, set_generators
from metastep.core.tasks import task_count
from metastep.core.trees import Tree, map_tree, norm, tree_flatten, tree_leaves, tree_unflatten
from metastep.errors import MetastepError, first_line
from metastep.step.capture import Record, recorded_by_cuda
from metastep.step.compiled.frozen import Frozen
from metastep.step.compiled.graphs import UntraceableError
from metastep.step.compiled.inductor import Build, built, interpreted, unavailable
from metastep.step.compiled.plan import DrawsError, Found, Plan, Replayed
from metastep.step.memory import Memory, in_bytes

PLANS = 4
SMALL = 2**14  # numbers of θ and of a task: with fewer, calling kernels costs more than what they compute
MAPPED = 64  # tasks at a time, at most

# How far a result may be from autograd's, relative. Sums in another order make 1e-7 to 1e-4 of it in loops that are
# stable (float32; 100 steps of a ReLU net: 1e-4). In others it may be as far as SLACK times what autograd's own result
# moves if θ moves by ROUNDING times its rounding error, which is what sums of a thousand terms lose. On a GPU,
# convolutions of float32 are TF32's unless that is switched off.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
COARSE = 1e-2  # in other precisions, and in float32 on a GPU
ROUNDING, SLACK = 32, 4.0

# Seconds of the processor to compile a plan for the first time: 12 to 15 for perceptrons of 142 to 668 nodes, 51 to 54
# for a transformer of 2,284 and a Conv4 of 1,322. Another process finds it on disk, and takes a tenth of it.
COLD, NODES = 10.0, 50

SLOW = 1.2  # times as long as without compiling, which a path tells

Tensors = list[Tensor]
Eager = Callable[[Tree], Estimate]


class TooManyPlansError(Exception):
    """Says that calls are of too many kinds to compile each."""


class Given(NamedTuple):
    """Hold θ and the tasks of a call as flat lists, and how they are nested."""

    theta: Tensors
    nesting: Any
    leaves: list[Any]
    spec: Any

    @staticmethod
    def of(meta: Tree, tasks: Any) -> "Given":
        return Given(*tree_flatten(meta), *tree_flatten(tasks))

    @property
    def meta(self) -> Tree:
        return tree_unflatten(self.theta, self.nesting)

    @property
    def tasks(self) -> Any:
        return tree_unflatten(self.leaves, self.spec)


class Cost(NamedTuple):
    """Say what compiling cost, and what it saves.

    Args:
        compiling: Seconds to trace and compile.
        eager: Seconds of one call without compiling.
        compiled: Seconds of one call.
    """

    compiling: float
    eager: float
    compiled: float

    @property
    def calls(self) -> float:
        """After how many calls compiling has paid; infinity if it never does."""
        saved = self.eager - self.compiled
        return self.compiling / saved if saved > 0 else float("inf")


class Compiled:
    """Estimate by compiled plans, or by `eager` where that is not possible.

    Args:
        estimator: The method on one task.
        chunk_size: Tasks at a time; by a rule of their size if None.
        at_once: How many tasks `eager` takes at a time, of (meta, tasks): random numbers are drawn as it draws them.
        memory: What windows may keep for the way back, as for a MetaGradient.
        build: What makes a function of a graph.
        record: What captures calls; CUDA graphs on a GPU, and nothing elsewhere, if None.
    """

    def __init__(
        self,
        estimator: Estimator,
        chunk_size: int | None,
        at_once: Callable[[Tree, Any], int],
        memory: Memory = None,
        build: Build = built,
        record: Record | None = None,
    ) -> None:
        self._estimator, self._chunk_size, self._at_once = estimator, chunk_size, at_once
        self._memory, self._build, self._record = memory, build, record
        loop, sweep = estimator.loop, estimator.sweep
        self._frozen = Frozen(*loop.problem[:3], loop.inner, sweep and sweep.curvature)
        self._plans: dict[Any, Plan | Replayed] = {}
        self._captured: list[Plan | Replayed] = []  # by others: their graphs read what these hold
        self._draws = False  # whether a loss draws random numbers
        self._calls = 0  # since the last plan was made
        self._ended = None if self._estimator.sweep else "the method is not a sweep over windows"
        self.reason: str | None = None
        """Why the last call was not computed by a plan."""
        self._how = ""
        self.cost = Cost(0.0, 0.0, 0.0)

    @property
    def path(self) -> str:
        """How the last call was computed by a plan, and whether that takes longer than without."""
        _, eager, compiled = self.cost
        if self._build is not built or compiled <= SLOW * eager:
            return self._how
        return f"{self._how}; slower than without compile=True, by {compiled / eager:.1f} times at the last comparison"

    def __call__(self, meta: Tree, tasks: Any, eager: Eager) -> Estimate:
        """Return the estimate.

        Args:
            meta: θ.
            tasks: Stacked tasks.
            eager: Computes the estimate of these tasks without compiling, for any θ of this kind.
        """
        given = Given.of(meta, tasks)
        self.reason = self._ended or self._unsuited(given)
        if self.reason is not None:
            return eager(meta)
        if is_captured():  # nobody can compile, compare or catch an error here
            return self._run(given)
        before, began = generators(), time.perf_counter()
        try:
            found = self._found(given)
        except Exception as error:  # tracers and compilers raise anything
            return self._instead(error, before, meta, eager)
        self._calls += 1
        if self._calls & (self._calls - 1):  # no power of two
            return found
        found.loss.item()  # waits for a GPU
        return self._compared(found, time.perf_counter() - began, before, meta, eager)

    def _instead(self, error: Exception, before: Generators, meta: Tree, eager: Eager) -> Estimate:
        self.reason = _told(error)
        set_generators(before)
        found = eager(meta)  # a call that is wrong itself raises here, and ends nothing
        if not isinstance(error, TooManyPlansError):
            self._end(self.reason)
        return found

    def _end(self, reason: str) -> None:
        """Compute nothing by plans any more"""
        self.reason = self._ended = reason
        self._plans.clear()

    def expected(self, meta: Tree, tasks: Any, eager: Eager) -> Cost:
        """Return what compiling would cost and save, without compiling.

        The graphs are traced and run operator by operator, so that a compiled call takes less than this says.

        Args:
            meta: θ.
            tasks: Stacked tasks.
            eager: As for a call.

        Raises:
            MetastepError: Nothing would be compiled; the message says why.
        """
        trial = Compiled(self._estimator, self._chunk_size, self._at_once, self._memory, interpreted)
        for _ in range(2):  # the first call traces
            trial(meta, tasks, eager)
        if trial.reason is not None:
            raise MetastepError(f"compile=True would compile nothing: {trial.reason}.")
        nodes = sum(plan.nodes for plan in trial._plans.values())
        return trial.cost._replace(compiling=COLD + nodes / NODES)

    # ---- run

    def _unsuited(self, given: Given) -> str | None:
        """Why this call is not for a plan"""
        device = given.theta[0].device
        if any(isinstance(x, Tensor) and x.device != device for x in (*given.theta, *given.leaves)):
            return "tensors are on several devices"
        if torch.is_autocast_enabled(device.type):
            return "autocast is on"
        if (is_transformed() and not is_captured()) or torch.is_inference_mode_enabled():
            return "the call is itself transformed, traced or in inference mode"
        return unavailable(device.type) if self._build is built else None

    def _found(self, given: Given) -> Estimate:
        try:
            return self._run(given)
        except DrawsError:
            self._draws = True
            return self._run(given)

    def _run(self, given: Given) -> Estimate:
        theta, leaves = [x.detach() for x in given.theta], [x.detach() for x in given.leaves]
        if theta[0].device.type != "cpu":  # a copy that a CUDA graph reads has the same strides then
            theta, leaves = [x.contiguous() for x in theta], [x.contiguous() for x in leaves]
        number, frozen, parts = leaves[0].shape[0], (self._frozen(), self._frozen.surroundings()), []
        size = self._size(theta, leaves, number, lambda: self._at_once(given.meta, given.tasks))
        with torch.no_grad():
            for i in range(0, number, size):
                part = [x[i] for x in leaves] if size == 1 else [x[i : i + size] for x in leaves]
                key = (given.nesting, given.spec, size == 1, _layouts(theta), _layouts(part), frozen)
                plan = self._plans.get(key)
                if plan is None:
                    task_count(given.tasks)  # looks whether they are tasks
                    plan = self._plans[key] = self._made(given.meta, tree_unflatten(part, given.spec), size > 1)
                if is_captured():
                    self._captured.append(plan)
                parts.append(plan(theta, part))
            self._how = ", ".join(["compiled", _tasks(size), *([plan.path] if isinstance(plan, Replayed) else [])])
            return _mean(parts, number, given.nesting)

    def _size(self, theta: Tensors, leaves: Tensors, number: int, at_once: Callable[[], int]) -> int:
        """Small tasks all at once, large ones one by one; if they draw random numbers, as eager execution does"""
        if self._chunk_size or self._draws:
            return min(self._chunk_size or at_once(), number)
        if theta[0].device.type != "cpu":
            return number
        one = sum(x.numel() for x in theta) + sum(x.numel() for x in leaves) // number
        return min(number, MAPPED) if one <= SMALL else 1

    def _made(self, meta: Tree, part: Any, mapped: bool) -> Plan | Replayed:
        if is_captured():
            raise RuntimeError("a plan cannot be made while a CUDA graph is captured")
        if len(self._plans) == PLANS:
            raise TooManyPlansError(
                f"there are more than {PLANS} kinds of calls, which differ in shapes or in values that a loss reads"
            )
        before, began = generators(), time.perf_counter()
        device = tree_leaves(meta)[0].device
        room = in_bytes(self._memory, device)
        plan = Plan(self._estimator, meta, part, mapped, self._build, self._draws, room)
        if device.type == "cuda" and self._record is None:
            self._record = recorded_by_cuda()  # one pool of memory for all plans
        set_generators(before)
        self._calls = 0
        self.cost = self.cost._replace(compiling=self.cost.compiling + time.perf_counter() - began)
        return Replayed(plan, self._record) if self._record else plan

    # ---- compare

    def _compared(self, found: Estimate, seconds: float, before: Generators, meta: Tree, eager: Eager) -> Estimate:
        set_generators(before)
        began = time.perf_counter()
        expected = eager(meta)
        if self._calls > 1:  # the first call compiled
            self.cost = self.cost._replace(eager=time.perf_counter() - began, compiled=seconds)
        if not _is_finite(expected):
            return expected  # whose reason is found where it is looked at
        error = difference(found, expected)
        if error <= tolerance_of(expected) or self._is_rounding(error, expected, before, meta, eager):
            return found
        self._end(
            f"the result differed from autograd's by {error:.1e} at call {self._calls}. A trace freezes what a loss "
            "reads besides φ, θ and the task; put what changes into θ or the task"
        )
        return expected

    def _is_rounding(self, error: float, expected: Estimate, before: Generators, meta: Tree, eager: Eager) -> bool:
        """Whether rounding θ changes the result as much, as it does where an inner loop is unstable"""
        after = generators()
        set_generators(before)
        moved = difference(eager(_rounded(meta)), expected)
        set_generators(after)
        return error <= SLACK * moved


def difference(a: Estimate, b: Estimate) -> float:
    """Return by how much two estimates differ: the largest relative difference of losses, metrics and gradients."""
    pairs = zip(tree_leaves((a.metrics, a.grad)), tree_leaves((b.metrics, b.grad)), strict=True)
    whole = 1e-3 * float(norm(b.grad))  # a tensor whose gradient is all rounding is measured by the others
    told = len(tree_leaves(b.metrics))
    return max(_relative(x, y, 0.0 if i < told else whole) for i, (x, y) in enumerate(pairs))


def _relative(x: Tensor, y: Tensor, least: float) -> float:
    x, y = x.double(), y.double()
    return float((x - y).norm() / y.norm().clamp_min(max(least, torch.finfo(torch.float64).tiny)))


def tolerance_of(estimate: Estimate) -> float:
    """Return how far another way to compute this may be from it, by its coarsest precision."""
    leaves = tree_leaves(estimate.grad)
    known = {torch.float64: TOLERANCE[torch.float64]} if leaves[0].device.type == "cuda" else TOLERANCE
    return max(known.get(leaf.dtype, COARSE) for leaf in leaves)


def _is_finite(estimate: Estimate) -> bool:
    return all(bool(torch.isfinite(leaf).all()) for leaf in (estimate.loss, *tree_leaves(estimate.grad)))


def _rounded(meta: Tree) -> Tree:
    """θ with every entry moved by some rounding errors, up and down in turn"""

    def moved(x: Tensor) -> Tensor:
        signs = 1 - 2 * (torch.arange(x.numel(), device=x.device) % 2).reshape(x.shape)
        return x.detach() * (1 + ROUNDING * torch.finfo(x.dtype).eps * signs).to(x.dtype)

    return map_tree(moved, meta)


def _layouts(tensors: Tensors) -> tuple[Any, ...]:
    return tuple((x.shape, x.stride(), x.dtype, x.device) for x in tensors)


def _tasks(size: int) -> str:
    return "one task after the other" if size == 1 else f"{size} tasks at a time"


def _told(error: Exception) -> str:
    is_ours = isinstance(error, MetastepError | UntraceableError | TooManyPlansError)
    return first_line(error) if is_ours else f"{type(error).__name__}: {first_line(error)}"


def _mean(parts: list[Found], number: int, nesting: Any) -> Estimate:
    """The estimate of all tasks; the gradients of a plan are sums"""
    grads = parts[0].grads
    for part in parts[1:]:
        grads = list(torch._foreach_add(grads, part.grads))
    grads = list(torch._foreach_div(grads, number))
    losses = _joined([part.losses for part in parts])
    each = [part.metrics if part.losses.dim() else {n: x[None] for n, x in part.metrics.items()} for part in parts]
    metrics = each[0] if len(each) == 1 else map_tree(lambda *given: torch.cat(given), *each)
    grown = None if parts[0].growth is None else _joined([part.growth for part in parts if part.growth is not None])
    every = {"loss": losses, **require_other_names(metrics)}
    return Estimate(losses.mean(), tree_unflatten(grads, nesting), every, None, grown)


def _joined(parts: Tensors) -> Tensor:
    """What each task has, of tasks that ran at a time or alone"""
    return parts[0] if len(parts) == 1 and parts[0].dim() else torch.cat([part.reshape(-1) for part in parts])
