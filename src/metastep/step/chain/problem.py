"""State few-shot learning with a chain as a problem of the core. φ of all tasks is one tensor (tasks, length).

The core needs no change. Tasks are independent, so the gradient of the sum of their losses contains the gradient of
each. Inner optimizers act entry by entry, so several tasks are the same to them as one.
"""

from collections.abc import Callable
from functools import partial, reduce, wraps
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from metastep.core.custom_losses import ByHand, OuterByHand
from metastep.core.estimators import Estimate, Estimator
from metastep.core.guards import session
from metastep.core.optimizers import State
from metastep.core.problems import every_window, params_of
from metastep.core.tasks import task_count
from metastep.core.trees import Tree, add, from_vector, hollow_like, map_tree, to_vector, tree_leaves
from metastep.core.windows import InnerLoop, Problem, Task
from metastep.errors import MetastepError
from metastep.step.chain.algebra import Operators, Parameters, differentiate, judge
from metastep.step.chain.chain import Chain
from metastep.step.mapped import joined

T = TypeVar("T")
Batch = tuple[Tensor, Tensor]
Tensors = tuple[Tensor, ...]
Judgement = tuple[Tensor, dict[str, Tensor]]  # the outer loss, and metrics of each task

# Bytes. States of a few tasks fit, but not the patches of their queries: those may run task by task.
# Conv4 with 64 filters, 5-way 1-shot with 15 queries, ms of one CPU thread per task for 1, 2, 4 and 8 tasks at a time:
# MAML 113, 97, 89, 94, Multi-step(4) 59, 55, 42, 42; with 16 filters: 46, 28, 23, 18 and 18, 12, 11, 10.
CACHE = 10**7


def gradient(
    operators: Operators, chain: Chain, flat: Tensor, x: Tensor, y: Tensor, flat_t: Tensor | None = None
) -> Tensors:
    """Return ∂L/∂φ, or (∂²L/∂φ²)·flat_t."""
    return differentiate(operators, chain, flat, x, y, flat_t)[1:]


def judged_gradient(operators: Operators, chain: Chain, flat: Tensor, x: Tensor, y: Tensor) -> Tensors:
    """Return loss and accuracy of each task, and ∂L/∂φ."""
    judged, found = differentiate(operators, chain, flat, x, y)
    return *judged.means, found


def value(operators: Operators, chain: Chain, flat: Tensor, x: Tensor, y: Tensor) -> Tensors:
    """Return loss and accuracy of each task."""
    params = Parameters.of(flat)
    return judge(operators, chain, params, x, y, operators.room(params.flat)).means


def by_cache(chain: Chain, function: Callable[..., Tensors], flat: Tensor, x: Tensor, *more: Tensor) -> Tensors:
    """Apply the function to as many tasks at a time as fit into the cache of a CPU."""
    size, given = tasks_at_a_time(chain, x), (flat, x, *more)
    if size >= len(x):
        return function(*given)
    parts = [function(*(t[i : i + size] for t in given)) for i in range(0, len(x), size)]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def tasks_at_a_time(chain: Chain, x: Tensor) -> int:
    """Return the number of tasks whose largest array, the patches of a block, fits into the cache."""
    if x.is_cuda:
        return len(x)
    patches = max(block.out_size**2 * block.kernel**2 * block.inputs for block in chain.blocks)
    return max(1, CACHE // (patches * x.shape[1] * x.element_size()))


def fused_problem(chain: Chain, operators: Operators) -> Problem:
    """Return the problem. θ is `chain.to_flat(parameters)`, and its one task is a batch of stacked tasks."""

    smallest = min(block.out_size for block in chain.blocks) ** 2

    def of_each(function: Callable[..., Tensors], params: Tensor, batch: Batch, *direction: Tensor) -> Tensors:
        if (pictures := batch[0].shape[1]) * smallest < 2:
            raise MetastepError(
                f"{pictures} pictures, which leave a BatchNorm fewer than two values for each channel: it has no "
                "variance. Give it more pictures at a time, or larger ones."
            )
        return by_cache(chain, partial(function, operators, chain), params, *batch, *direction)

    def inner_loss(params: Tensor, meta: Tree, batch: Batch) -> Tensor:
        return of_each(value, params, batch)[0].sum()

    def derivative(params: Tensor, meta: Tree, batch: Batch, *direction: Tensor) -> Tensor:
        return of_each(gradient, params, batch, *direction)[-1]

    def product(params: Tensor, meta: Tree, batch: Batch, direction: Tensor) -> tuple[Tensor, Tree]:
        return derivative(params, meta, batch, direction), hollow_like(meta)  # the losses of a chain do not contain θ

    def outer_loss(params: Tensor, meta: Tree, task: Task) -> Judgement:
        return _judgement(*of_each(value, params, task.query))

    def outer_gradients(params: Tensor, meta: Tree, task: Task) -> tuple[tuple[Tensor, Tree], Judgement]:
        *found, grad = of_each(judged_gradient, params, task.query)
        return (grad, hollow_like(meta)), _judgement(*found)

    windows = every_window(ByHand(inner_loss, derivative, product))
    outer = OuterByHand(outer_loss, outer_gradients, partial(torch.linalg.vector_norm, dim=1))
    return Problem(lambda meta, task: meta.expand(task_count(task), -1), windows, outer)


def _judgement(loss: Tensor, accuracy: Tensor) -> Judgement:
    return loss.sum(), {"loss": loss, "accuracy": accuracy}


def dot_of_each(a: Tensor, b: Tensor) -> Tensor:
    """Return ⟨a, b⟩ of each task, (tasks, 1)."""
    return (a * b).sum(1, keepdim=True)


def mean_over_tasks(
    chain: Chain, estimator: Estimator, chunk_size: int | None = None, apart: bool = False
) -> Callable[[Tree, Task], Estimate]:
    """Return the mean meta-gradient by name, and the metrics of each task, by an estimator of a fused problem.

    chunk_size: tasks at a time; if left out, all on a GPU, and on a CPU as many as its cache holds the states of.
    apart: the estimator compares φ with θ (Reptile), so θ has a task axis too.
    """

    places: dict[tuple[torch.device, torch.dtype], Places] = {}

    def estimate(meta: Tree, tasks: Task) -> Estimate:
        number, measured = task_count(tasks), list[dict[str, Tensor]]()
        first = tree_leaves(meta)[0]
        if (kind := (first.device, first.dtype)) not in places:
            places[kind] = Places.of(chain, params_of(meta))
        theta, stacked = flattened(meta, places[kind].to_flat), _stacked(chain, tasks)
        grown: list[Tensor | None] = []
        # φ, v, g and Λ of each task, and as much again. More tasks gain little and take more memory than a hand loop.
        at_once = number if first.is_cuda else max(1, CACHE // (8 * tree_leaves(theta)[0].nbytes))
        size = chunk_size or at_once

        def part(i: int) -> Tree:
            some = map_tree(lambda x: x[i : i + size], stacked)
            with session():  # no user's function to check
                found = estimator(for_each(theta, task_count(some)) if apart else theta, some)
            measured.append(found.metrics)
            grown.append(found.growth)
            return map_tree(lambda grad: grad.sum(0), found.grad) if apart else found.grad

        total = reduce(add, map(part, range(0, number, size)))
        metrics = map_tree(lambda *parts: torch.cat(parts), *measured) if len(measured) > 1 else measured[0]
        mean = map_tree(lambda grad: grad / number, total)
        grad = named(mean, meta, places[kind].from_flat)
        return Estimate(metrics["loss"].mean(), grad, metrics, None, joined(grown))

    return where_meta_is(estimate)


def where_meta_is(function: Callable[..., T]) -> Callable[..., T]:
    """Call a function of (…, meta, tasks) without a graph, on the device of θ. Kernels start on the current device."""

    @wraps(function)
    @torch.no_grad()
    def placed(*given: Any) -> T:
        with torch.cuda.device_of(tree_leaves(given[-2])[0]):  # type: ignore[no-untyped-call]
            return function(*given)

    return placed


class FusedJudge(NamedTuple):
    """Compute loss and accuracy on the queries of each task by the inner loop of a fused problem."""

    chain: Chain
    loop: InnerLoop

    @where_meta_is
    def at_the_end(self, meta: Tree, tasks: Task) -> dict[str, Tensor]:
        theta, stacked = self._flat(meta, tasks)
        return self._measured(self.loop.adapt(theta, stacked), theta, stacked)

    @where_meta_is
    def after_each_window(self, meta: Tree, tasks: Task) -> list[dict[str, Tensor]]:
        """Return the metrics before the first window, and after each window."""
        theta, stacked = self._flat(meta, tasks)
        state = self.loop.begin(theta, stacked)
        found = [self._measured(state, theta, stacked)]
        for window in self.loop.windows(stacked):
            state = self.loop.run([window], state, theta)
            found.append(self._measured(state, theta, stacked))
        return found

    def _flat(self, meta: Tree, tasks: Task) -> tuple[Tree, Task]:
        return for_each(flattened(meta, self.chain.to_flat), task_count(tasks)), _stacked(self.chain, tasks)

    def _measured(self, state: State, theta: Tree, tasks: Task) -> dict[str, Tensor]:
        metrics: dict[str, Tensor] = self.loop.problem.outer_loss(state.params, theta, tasks)[1]
        return metrics


def flattened(meta: Tree, to_flat: Callable[[dict[str, Tensor]], Tensor]) -> Tree:
    """Return θ, and each part of a memory next to it, as vectors. A number becomes a vector of length 1."""
    if params_of(meta) is meta:
        return to_flat(meta)
    memory = {i: to_flat(part) if isinstance(part, dict) else part.view(1) for i, part in meta["memory"].items()}
    return {"params": to_flat(meta["params"]), "memory": memory}


def named(flat: Tree, meta: Tree, from_flat: Callable[[Tensor, dict[str, Tensor]], dict[str, Tensor]]) -> Tree:
    """Return vectors of `flattened` in the structure of `meta`."""
    if params_of(meta) is meta:
        return from_flat(flat, meta)
    like = meta["params"]
    memory = {i: part.view(()) if len(part) == 1 else from_flat(part, like) for i, part in flat["memory"].items()}
    return {"params": from_flat(flat["params"], like), "memory": memory}


def for_each(theta: Tree, tasks: int) -> Tree:
    return map_tree(lambda x: x.expand(tasks, -1), theta)


class Places(NamedTuple):
    """Hold `to_flat` and `from_flat` as indices, so that each takes one pass instead of one per parameter."""

    names: tuple[str, ...]  # the order of the parameters in the vector
    into: Tensor  # (length,): index of the entry, from 1; 0 is padding
    back: Tensor
    zero: Tensor  # the padding, (1,)

    @classmethod
    def of(cls, chain: Chain, meta: dict[str, Tensor]) -> Self:
        vector = to_vector(meta)
        into = chain.to_flat(from_vector(torch.arange(1, vector.numel() + 1, device=vector.device), meta))
        back = chain.from_flat(torch.arange(chain.length, device=vector.device), meta)
        return cls(tuple(meta), into, to_vector({name: back[name] for name in meta}), vector.new_zeros(1))

    def to_flat(self, meta: dict[str, Tensor]) -> Tensor:
        return to_vector((self.zero, self._ordered(meta)))[self.into]

    def from_flat(self, flat: Tensor, meta: dict[str, Tensor]) -> dict[str, Tensor]:
        by_name: dict[str, Tensor] = from_vector(flat[self.back], self._ordered(meta))
        return {name: by_name[name] for name in meta}

    def _ordered(self, meta: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: meta[name] for name in self.names}


def _stacked(chain: Chain, tasks: Task) -> Task:
    return Task(*(_channels_last(chain, *batch) for batch in tasks))


def _channels_last(chain: Chain, x: Tensor, y: Tensor) -> Batch:
    first = chain.blocks[0]
    if x.shape[2:] != (first.inputs, first.size, first.size):
        raise MetastepError(
            f"pictures {tuple(x.shape[2:])} for a net that was prepared for {(first.inputs, first.size, first.size)}: "
            "give it pictures of that shape, or prepare it for these."
        )
    return x.permute(0, 1, 3, 4, 2).contiguous(), y.contiguous()  # kernels require it
