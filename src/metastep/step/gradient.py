"""`MetaGradient`: a description of a meta-gradient, and the fastest engine that serves it.

Chains of convolution, BatchNorm, ReLU and max-pooling are differentiated by hand (`metastep.step.chain`): by Triton
kernels on a GPU, in PyTorch elsewhere. Everything else is differentiated by autograd (`metastep.step.eager`). `path`
says which engine runs, and why nothing faster does.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property, partial, reduce
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from metastep.core.accumulation import accumulated
from metastep.core.checks import require_data, require_other_names
from metastep.core.estimators import Estimate, Estimator
from metastep.core.from_torch import resolved
from metastep.core.method import Method
from metastep.core.modules import tree_of
from metastep.core.options import Checked
from metastep.core.problems import few_shot_of, in_batches
from metastep.core.tasks import require_finite, require_order, stack
from metastep.core.trees import Tree, add, map_tree, require_same, scale, shapes, tree_leaves
from metastep.core.value import Value
from metastep.core.windows import InnerLoop, Problem, Steps
from metastep.errors import MetastepError, NonFiniteError
from metastep.step.apart import apart
from metastep.step.arguments import (
    USAGE,
    require_constant,
    require_counts,
    require_examples,
    require_keep,
    require_parts,
)
from metastep.step.chain.problem import FusedJudge
from metastep.step.chain.serving import Served, served
from metastep.step.choice import Choices
from metastep.step.compiled.engine import Compiled, Cost
from metastep.step.fingerprint import Fingerprint
from metastep.step.mapped import Keep, joined, mapped, require_start, started
from metastep.step.memory import Memory, in_bytes
from metastep.step.surrogate import loss_of


class Engine(NamedTuple):
    """What computes a batch of tasks."""

    run: Callable[[Tree, Any], Estimate]
    require_values: Callable[[Tree, Any], None]
    path: str


@dataclass(frozen=True, eq=False, repr=False)
class MetaGradient(Value, Checked):
    """Describe a meta-gradient; called with (meta, tasks), it gives an `Estimate`.

    Inside of torch.autocast, losses run in its precision. States of inner loops and the sweep through them stay in the
    precision of φ.

    A MetaGradient is immutable and printable. Two are equal if their parts are. It pickles if its functions do.
    Several threads may call it; one computes at a time.

    Args:
        problem: What is learned: `few_shot(net, loss)`, or a `Problem` of three functions.
        method: How the meta-gradient is estimated, such as `MAML()` or `MultiStep(window=4)`.
        inner: The inner optimizer, such as `SGD(lr=0.1)`, or one of torch.optim that holds the module's parameters.
        steps: Inner steps, or a list with the length of each window.
        batch: Examples of the support in each window's mini-batch; all if left out.
        shuffled: Shuffle the support before every pass over it.
        chunk_size: Tasks computed at a time. It bounds the memory. With 1, tasks run one after the other without vmap,
            which serves every module that a single task can run.
        example_chunk_size: Examples computed at a time, for losses and metrics that are means over examples. It bounds
            the memory further. A BatchNorm would see one part alone.
        compile: Compile the sweep. The first call takes seconds, later ones are faster. On a GPU, later calls are
            replayed as a CUDA graph. `path` says what runs, and why something is not compiled.
        memory: How much the graphs and states of inner loops may take, such as "4GB"; by default, half of what is free
            at the first call. It decides what is kept and what is computed again, and changes no bit of the result.
        benchmark: Choose by the clock, at the first call, whether tasks run one after the other or together. By default
            a rule of shapes chooses, so that equal runs are equal bit by bit.

    Raises:
        MetastepError: The parts do not fit together; the message says what to write.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> net = torch.nn.Linear(2, 3)
        >>> problem = ms.few_shot(net, torch.nn.functional.cross_entropy)
        >>> gradient = ms.MetaGradient(problem, ms.MultiStep(window=4), ms.SGD(lr=0.1), steps=8)
        >>> batch = torch.randn(4, 6, 2), torch.randint(3, (4, 6))  # 4 tasks of 6 examples
        >>> estimate = gradient(net, ms.Task(support=batch, query=batch))
        >>> estimate.metrics["loss"].shape
        torch.Size([4])
    """

    usage: ClassVar[str] = USAGE
    problem: Problem
    method: Method
    inner: Any
    _: KW_ONLY
    steps: Steps
    batch: int | None = None
    shuffled: bool = False
    chunk_size: int | None = None
    example_chunk_size: int | None = None
    compile: bool = False
    memory: Memory = None
    benchmark: bool = False

    def __post_init__(self) -> None:
        require_parts(self.problem, self.method, self.inner)
        few_shot = few_shot_of(self.problem)
        object.__setattr__(self, "inner", resolved(self.inner, None if few_shot is None else few_shot.module))
        require_counts(batch=self.batch, chunk_size=self.chunk_size, example_chunk_size=self.example_chunk_size)
        if self.memory is not None:
            in_bytes(self.memory, torch.device("cpu"))
        _ = self.loop  # says at once what does not fit
        if isinstance(self.steps, list):
            object.__setattr__(self, "steps", tuple(self.steps))  # so that nobody changes them afterwards

    def __repr__(self) -> str:
        options = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.kw_only]
        told = [option for option in options if not option.endswith(("=None", "=False"))]
        return f"MetaGradient({', '.join([_named(self.problem), repr(self.method), repr(self.inner), *told])})"

    @cached_property
    def loop(self) -> InnerLoop:
        """The inner loop of one task."""
        problem = in_batches(self.problem, self.batch, shuffled=self.shuffled) if self.batch else self.problem
        loop = self.method.loop(problem, self.inner, self.steps)
        if self.example_chunk_size is None:
            return loop
        return loop._replace(problem=accumulated(loop.problem, self.example_chunk_size))

    @cached_property
    def estimator(self) -> Estimator:
        """The method on one task: a function (meta, task) -> Estimate, and the specification of all engines."""
        return self.method.estimator(self.loop)

    @apart
    def __call__(self, meta: Any, tasks: Any, *, keep: Keep = None, start: Any = None) -> Estimate:
        """Return the meta-gradient, the mean over tasks.

        A result that is not finite is an error, and one of zeros is a warning.

        Args:
            meta: θ: a tree of tensors or a module.
            tasks: Tasks stacked along a first axis, or a list of them. In a list they may differ in shape.
            keep: "params" returns φ of each task in `state`. "state" returns a `Kept` with the optimizer's memory and
                the linear solution too. Either takes the memory of all tasks' φ.
            start: Where the inner loops begin: φ of each task, or what `keep` returned. θ then does not move the start.

        Returns:
            An `Estimate`.

        Raises:
            MetastepError: The arguments do not fit together.
            NonFiniteError: The meta-gradient is not finite; the message names the task and the window.
        """
        require_order(meta, tasks)
        require_keep(keep)
        meta = tree_of(meta)
        if isinstance(tasks, list) and not _alike(tasks):
            return _one_by_one(partial(self, keep=keep), meta, tasks, start)
        tasks = self._stacked(tasks)
        start = None if start is None else require_start(start, tasks, self.inner)
        engine = self.engine(meta, tasks, keep, start)
        engine.require_values(meta, tasks)
        found = engine.run(meta, tasks)
        require_finite(partial(self._loop_of, start), meta, tasks, found)
        if keep == "state":
            return found._replace(state=found.state._replace(inner=type(self.inner).__name__))
        return found

    @apart
    def unchecked(self, meta: Tree, tasks: Any) -> Estimate:
        """Return the same without looking at any value, which would wait for a GPU."""
        if isinstance(tasks, list) and not _alike(tasks):
            return mean_of([self.unchecked(meta, [task]) for task in tasks])
        tasks = self._stacked(tasks)
        return self.engine(meta, tasks).run(meta, tasks)

    @apart
    def loss(self, meta: Any, tasks: Any, *, start: Any = None) -> Tensor:
        """Return the outer loss as a scalar whose `.backward()` adds the meta-gradient to `.grad`.

        Without grad mode, or if nothing in `meta` requires grad, it costs the inner loop alone. Several processes do
        not talk to each other here: see `MetaStep`.

        Args:
            meta: θ: a tree of tensors or a module.
            tasks: Stacked tasks, or a list of them.
            start: Where the inner loops begin, as for a call.

        Returns:
            The mean outer loss.

        Raises:
            MetastepError: A tensor of the tasks requires grad; or the result was differentiated twice.

        Example:
            >>> import torch
            >>> import metastep as ms
            >>> net = torch.nn.Linear(2, 1)
            >>> problem = ms.few_shot(net, torch.nn.functional.mse_loss)
            >>> gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=0.1), steps=2)
            >>> batch = torch.randn(4, 6, 2), torch.randn(4, 6, 1)
            >>> gradient.loss(net, ms.Task(batch, batch)).backward()
            >>> net.weight.grad.shape
            torch.Size([1, 2])
        """
        require_order(meta, tasks)
        require_constant(tasks)
        meta = tree_of(meta)
        if torch.is_grad_enabled() and any(leaf.requires_grad for leaf in tree_leaves(meta)):
            return loss_of(lambda theta: self(theta, tasks, start=start), meta)
        return self.judge(meta, tasks, start=start).loss

    @apart
    def judge(self, meta: Any, tasks: Any, *, start: Any = None) -> Estimate:
        """Return the outer loss and the metrics alone; `grad` is empty.

        Args:
            meta: θ: a tree of tensors or a module.
            tasks: Stacked tasks, or a list of them.
            start: Where the inner loops begin, as for a call.

        Returns:
            An `Estimate` without gradient.
        """
        require_order(meta, tasks)
        meta = tree_of(meta)
        if isinstance(tasks, list) and not _alike(tasks):
            return _one_by_one(self.judge, meta, tasks, start)
        tasks = self._stacked(tasks)
        start = None if start is None else require_start(start, tasks, self.inner)
        found, _ = self._served(tasks, None, start)
        if found is not None:
            found.require_values(meta, tasks)
            return found.judge(meta, tasks)
        return mapped(self.method, self.loop, self.chunk_size, judged=True)(meta, tasks, start)

    def init(self, params: Any) -> Tree:
        """Return θ for these parameters, with the rates or the memory that the method learns.

        Args:
            params: A module, whose own parameters θ then is; or a tree of tensors. If none of them requires grad, θ
                holds copies that do.

        Returns:
            θ. What it holds requires grad, except for tensors that are frozen among others that are not.

        Example:
            >>> import torch
            >>> import metastep as ms
            >>> net = torch.nn.Linear(2, 1)
            >>> problem = ms.few_shot(net, torch.nn.functional.mse_loss)
            >>> gradient = ms.MetaGradient(problem, ms.MetaSGD(), ms.SGD(lr=0.1), steps=2)
            >>> sorted(gradient.init(net))
            ['params', 'rates']
        """
        params = tree_of(params)
        if not any(leaf.requires_grad for leaf in tree_leaves(params)):
            params = map_tree(lambda leaf: leaf.detach().clone().requires_grad_(), params)
        meta = self.method.init(params, self.inner, self.loop.lengths)
        own = {id(leaf) for leaf in tree_leaves(params)}
        return map_tree(lambda leaf: leaf if id(leaf) in own else leaf.requires_grad_(), meta)

    @apart
    def adapt(self, meta: Any, task: Any) -> Tree:
        """Return φ after the inner loop on one task. `ms.as_module(net, φ)` makes a module of it.

        Args:
            meta: θ: a tree of tensors or a module.
            task: One task. Only its support is used.

        Returns:
            φ.
        """
        require_order(meta, task)
        return self.estimator.adapt(tree_of(meta), task)

    @apart
    def at(self, meta: Any, task: Any, params: Any) -> Estimate:
        """Differentiate implicitly at a solution that you bring; no inner step is made.

        Args:
            meta: θ: a tree of tensors or a module.
            task: One task.
            params: φ that solves its inner problem: a tree or a module.

        Returns:
            An `Estimate` of this task. Its metrics have one value.

        Raises:
            MetastepError: The method is not an implicit one, or params are not φ of one task.
            NonFiniteError: The result is not finite.
        """
        at = getattr(self.method, "at", None)
        if at is None:
            raise MetastepError(
                f"{self.method!r} differentiates the steps of the inner loop, so it needs them. Use ms.IMAML(…) to "
                "differentiate at a solution."
            )
        require_order(meta, task)
        meta, state = tree_of(meta), self.inner.init(map_tree(torch.Tensor.detach, tree_of(params)))
        require_same(self.loop.begin(meta, task).params, state.params, "φ of the problem and params, of one task,")
        found = Estimator(self.loop, lambda meta, task: at(self.loop, state, meta, task)).unchecked(meta, task)
        each = map_tree(lambda x: x[None], {"loss": found.loss, **require_other_names(found.metrics)})
        if not all(bool(torch.isfinite(leaf).all()) for leaf in tree_leaves((found.loss, found.grad))):
            raise NonFiniteError(
                f"the implicit gradient at these params is not finite; the outer loss there is {float(found.loss):g}. "
                "Look at params, or at the solver of the method."
            )
        return found._replace(metrics=each, state=None)

    @property
    def path(self) -> str:
        """Which engine ran last, and why nothing faster did."""
        return self._ran[-1] if self._ran else "not called yet: the engine is chosen from the tasks"

    def engine(self, meta: Tree, tasks: Any, keep: Keep = None, start: Any = None) -> Engine:
        """Choose what computes these tasks."""
        reason = self._not_compiled(tasks, keep, start) if self.compile else ""
        if self.compile and reason is None:
            return Engine(self._run_compiled, _accept, self.path)
        engine = self._uncompiled(meta, tasks, keep, start)
        if reason:
            engine = engine._replace(path=f"{engine.path}; not compiled: {reason}")
        self._ran[:] = [engine.path]
        return engine

    def _not_compiled(self, tasks: Any, keep: Keep, start: Any) -> str | None:
        if keep is not None or start is not None:
            return "states are kept or given"
        on_gpu = tree_leaves(tasks)[0].device.type == "cuda"
        return "kernels by hand are faster on a GPU" if on_gpu and self._served(tasks, keep, start)[0] else None

    def _uncompiled(self, meta: Tree, tasks: Any, keep: Keep, start: Any) -> Engine:
        found, reason = self._served(tasks, keep, start)
        if found is not None:
            return Engine(found.estimate, found.require_values, found.path)
        chosen = self.choices(meta, tasks, keep, start)
        return Engine(lambda meta, tasks: chosen.run(meta, tasks, start), _accept, f"autograd, {chosen.told}: {reason}")

    @apart
    def compile_cost(self, meta: Any, tasks: Any) -> Cost:
        """Estimate what `compile=True` would cost and save, without compiling.

        Args:
            meta: θ: a tree of tensors or a module.
            tasks: Stacked tasks, or a list of tasks of one shape.

        Returns:
            A `Cost`: seconds to compile, seconds of a call without and with, and after how many `calls` it has paid.
            Compiling is right to about a factor of 2, and a compiled call takes less than it says.

        Raises:
            MetastepError: Nothing would be compiled; the message says why.

        Example:
            >>> import torch
            >>> import metastep as ms
            >>> net = torch.nn.Linear(2, 1)
            >>> problem = ms.few_shot(net, torch.nn.functional.mse_loss)
            >>> gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=0.1), steps=2)
            >>> batch = torch.randn(4, 6, 2), torch.randn(4, 6, 1)  # 4 tasks of 6 examples
            >>> gradient.compile_cost(net, ms.Task(batch, batch)).calls > 0
            True
        """
        meta, tasks = tree_of(meta), self._stacked(tasks)
        return self.compiled.expected(
            meta, tasks, lambda meta: self._uncompiled(meta, tasks, None, None).run(meta, tasks)
        )

    def _run_compiled(self, meta: Tree, tasks: Any) -> Estimate:
        paths: list[str] = []

        def eager(meta: Tree) -> Estimate:
            engine = self._uncompiled(meta, tasks, None, None)
            engine.require_values(meta, tasks)
            paths.append(engine.path)
            return engine.run(meta, tasks)

        found, reason = self.compiled(meta, tasks, eager), self.compiled.reason
        self._ran[:] = [f"{paths[0]}; not compiled: {reason}" if reason else self.compiled.path]
        return found

    @cached_property
    def compiled(self) -> Compiled:
        """The compiled engine, if `compile` is set. Its `cost` says what compiling took and what it saves."""
        choices = self.choices
        return Compiled(self.estimator, self.chunk_size, lambda *given: choices(*given).at_once, self.memory)

    def by_hand(self, size: int) -> Served | str:
        """Return the hand-written derivatives for pictures of `size`, or why there are none."""
        now, (then, found) = self.fingerprint(), self._chains.get(size, (None, ""))
        if not found or then != now:
            found = served(self, size)
            self._chains[size] = now, found
        return found

    def judge_by_hand(self, size: int) -> FusedJudge | None:
        """Return what judges by hand, or None where it cannot be by hand."""
        found = self.by_hand(size)
        return None if isinstance(found, str) else found.judging

    def _stacked(self, tasks: Any) -> Any:
        if isinstance(tasks, list):
            return stack(tasks)
        require_examples(self.problem, tasks)
        return tasks

    def _served(self, tasks: Any, keep: Keep, start: Any) -> tuple[Served | None, str]:
        if keep is not None or start is not None:
            return None, "states are kept or given, which the hand-written derivatives do not do"
        if (size := _size_of(tasks)) is None:
            return None, "derivatives by hand need square pictures with channels, and classes"
        found = self.by_hand(size)
        return (None, found) if isinstance(found, str) else (found, "")

    def _loop_of(self, start: Any, i: int) -> InnerLoop:
        """Return the inner loop of task i, from where it started."""
        if start is None:
            return self.loop
        return started(self.loop, map_tree(lambda x: x[i] if isinstance(x, Tensor) else x, start))

    @cached_property
    def fingerprint(self) -> Callable[[], Any]:
        """Read what a prepared computation depends on besides tensors."""
        few_shot = few_shot_of(self.problem)
        if few_shot is None:
            return lambda: None
        parts = few_shot.module, few_shot.loss
        return Fingerprint(nn.ModuleList(part for part in parts if isinstance(part, nn.Module)))

    @cached_property
    def _chains(self) -> dict[int, tuple[Any, Served | str]]:
        return {}

    @cached_property
    def choices(self) -> Choices:
        """Hold what is chosen for each kind of tasks."""
        return Choices(self.method, self.loop, self.chunk_size, self.memory, self.benchmark)

    @cached_property
    def _ran(self) -> list[str]:
        return []


def _one_by_one(call: Callable[..., Estimate], meta: Tree, tasks: list[Any], start: Any) -> Estimate:
    """Return the estimate of tasks of different shapes; `start` is a list, as `state` is."""
    starts = [None] * len(tasks) if start is None else start
    if len(starts) != len(tasks):
        raise MetastepError(f"start has {len(starts)} entries for {len(tasks)} tasks. Give a list with one for each.")
    return mean_of([call(meta, [task], start=at) for task, at in zip(tasks, starts, strict=True)])


def mean_of(parts: list[Estimate]) -> Estimate:
    """Return the mean of the estimates of single tasks."""
    total = reduce(add, (part.grad for part in parts))
    metrics = map_tree(lambda *each: torch.cat(each), *(part.metrics for part in parts))
    states = [part.state for part in parts]
    kept = None if states[0] is None else states
    grown = joined([part.growth for part in parts])
    return Estimate(metrics["loss"].mean(), scale(1 / len(parts), total), metrics, kept, grown)


def _size_of(tasks: Any) -> int | None:
    """Return the side of square pictures with channels and classes; None of anything else."""
    x = next((x for x in tree_leaves(tasks) if isinstance(x, Tensor)), None)
    pairs = isinstance(tasks, tuple) and len(tasks) == 2 and all(isinstance(p, tuple | list) for p in tasks)
    square = x is not None and x.dim() == 5 and x.shape[3] == x.shape[4]
    return x.shape[-1] if square and pairs and [len(p) for p in tasks] == [2, 2] else None  # type: ignore[union-attr]


def _alike(tasks: list[Any]) -> bool:
    """Return whether tasks can be stacked. `stack` refuses an empty list."""
    require_data(tasks, "tasks")
    return all(shapes(task) == shapes(tasks[0]) for task in tasks)


def _accept(meta: Tree, tasks: Any) -> None:
    """Accept every value."""


def _named(problem: Problem) -> str:
    few_shot = few_shot_of(problem)
    if few_shot is None:
        return "Problem(…)"
    loss = getattr(few_shot.loss, "__name__", type(few_shot.loss).__name__)
    return f"few_shot({type(few_shot.module).__name__}, {loss})"
