"""Few-shot learning with a chain, as a problem of the core: φ of all tasks of a batch is one tensor, (tasks, length).

The core needs no change for it. Tasks share nothing, so the gradient of the sum of their losses is the gradient of
each; dynamics act entry by entry, so they do not see that there are many tasks.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from metastep.by_hand import ByHand
from metastep.dynamics import State
from metastep.errors import MetastepError
from metastep.estimators import Estimate, Estimator
from metastep.fused.algebra import Operators, Parameters, differentiate, judge
from metastep.fused.chain import Chain
from metastep.problems import every_window
from metastep.tasks import task_count
from metastep.trees import Tree, joined, map_tree, parted, zeros_like
from metastep.windows import InnerLoop, Problem, Task

Batch = tuple[Tensor, Tensor]
Tensors = tuple[Tensor, ...]

# Bytes. States of a few tasks fit, but not the patches of their queries: those go through task by task if need be.
# Conv4 with 64 filters, 5-way 1-shot with 15 queries, CPU ms of one thread for each task, by ones, twos, fours, eights:
# MAML 113, 97, 89, 94, Multi-step(4) 59, 55, 42, 42; with 16 filters: 46, 28, 23, 18 and 18, 12, 11, 10.
CACHE = 10**7


def gradient(
    operators: Operators, chain: Chain, flat: Tensor, x: Tensor, y: Tensor, flat_t: Tensor | None = None
) -> Tensors:
    """∂L/∂φ, or (∂²L/∂φ²)·flat_t"""
    return differentiate(operators, chain, flat, x, y, flat_t)[1:]


def judged_gradient(operators: Operators, chain: Chain, flat: Tensor, x: Tensor, y: Tensor) -> Tensors:
    """Loss and accuracy of each task, and ∂L/∂φ"""
    judged, found = differentiate(operators, chain, flat, x, y)
    return judged.loss, judged.accuracy, found


def value(operators: Operators, chain: Chain, flat: Tensor, x: Tensor, y: Tensor) -> Tensors:
    """Loss and accuracy of each task"""
    params = Parameters.of(flat)
    judged = judge(operators, chain, params, x, y, operators.room(params.flat))
    return judged.loss, judged.accuracy


def by_cache(chain: Chain, function: Callable[..., Tensors], flat: Tensor, x: Tensor, *more: Tensor) -> Tensors:
    """The function of as many tasks at a time as the cache of a CPU holds"""
    size, given = tasks_at_a_time(chain, x), (flat, x, *more)
    if size >= len(x):
        return function(*given)
    parts = [function(*(t[i : i + size] for t in given)) for i in range(0, len(x), size)]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def tasks_at_a_time(chain: Chain, x: Tensor) -> int:
    """By the largest array, the patches of a block"""
    if x.is_cuda:
        return len(x)
    patches = max(block.out_size**2 * block.kernel**2 * block.inputs for block in chain.blocks)
    return max(1, CACHE // (patches * x.shape[1] * x.element_size()))


class _Loss(torch.autograd.Function):
    """Cross-entropy and accuracy of each task; the gradient is made along with them, by hand"""

    @staticmethod
    def forward(flat: Tensor, x: Tensor, y: Tensor, chain: Chain, operators: Operators) -> Tensors:
        return by_cache(chain, partial(judged_gradient, operators, chain), flat, x, y)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(output[2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        (found,) = ctx.saved_tensors
        return d_loss[:, None] * found, None, None, None, None


def fused_problem(chain: Chain, operators: Operators) -> Problem:
    """θ is `chain.to_flat(parameters)`; a task is a whole batch of tasks, stacked, as `over_tasks` takes it."""

    def losses(params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        if not params.requires_grad:  # nobody will ask for the gradient
            loss, accuracy = by_cache(chain, partial(value, operators, chain), params, *batch)
            return loss, accuracy
        return _Loss.apply(params, *batch, chain, operators)[:2]  # type: ignore[no-untyped-call, no-any-return]

    def inner_loss(params: Tensor, meta: Tree, batch: Batch) -> Tensor:
        return losses(params, batch)[0].sum()

    def derivative(params: Tensor, meta: Tree, batch: Batch, *direction: Tensor) -> Tensor:
        return by_cache(chain, partial(gradient, operators, chain), params, *batch, *direction)[-1]

    def product(params: Tensor, meta: Tree, batch: Batch, direction: Tensor) -> tuple[Tensor, Tree]:
        return derivative(params, meta, batch, direction), zeros_like(meta)  # the losses of a chain do not see θ

    def outer_loss(params: Tensor, meta: Tree, task: Task) -> tuple[Tensor, dict[str, Tensor]]:
        loss, accuracy = losses(params, task.query)
        return loss.sum(), {"loss": loss.detach(), "accuracy": accuracy}

    windows = every_window(ByHand(inner_loss, derivative, product))
    return Problem(lambda meta, task: meta.expand(task_count(task), -1), windows, outer_loss)


def dot_of_each(a: Tensor, b: Tensor) -> Tensor:
    """⟨a, b⟩ of each task, (tasks, 1)"""
    return (a * b).sum(1, keepdim=True)


def fused_over_tasks(
    chain: Chain, estimator: Estimator, chunk_size: int | None = None, apart: bool = False
) -> Callable[[dict[str, Tensor], Task], Estimate]:
    """As `over_tasks`, for an estimator of a fused problem: the mean meta-gradient by name, metrics of each task.

    chunk_size: tasks at a time; if left out, all on a GPU, and on a CPU as many as its cache holds the states of.
    apart: the estimator compares φ with θ (Reptile), so θ has a task axis too.
    """

    places: dict[torch.device, Places] = {}

    def estimate(meta: dict[str, Tensor], tasks: Task) -> Estimate:
        number, measured = task_count(tasks), []
        device = next(iter(meta.values())).device
        if device not in places:
            places[device] = Places.of(chain, meta)
        theta, stacked = places[device].to_flat(meta), Task(*(_channels_last(chain, *batch) for batch in tasks))
        # φ, v, g and Λ of each, and as much between them. More gain little, for more memory than a hand-written loop.
        at_once = number if theta.is_cuda else max(1, CACHE // (8 * theta.nbytes))
        size, total = chunk_size or at_once, torch.zeros_like(theta)
        for i in range(0, number, size):
            some = map_tree(lambda x, i=i: x[i : i + size], stacked)
            part = estimator(theta.expand(task_count(some), -1) if apart else theta, some)
            total += part.grad.sum(0) if apart else part.grad
            measured.append(part.metrics)
        metrics = map_tree(lambda *parts: torch.cat(parts), *measured)
        return Estimate(metrics["loss"].mean(), places[device].from_flat(total / number, meta), metrics)

    return torch.no_grad()(estimate)


class FusedJudge(NamedTuple):
    """Loss and accuracy on the queries of each task, by the inner loop of a fused problem"""

    chain: Chain
    loop: InnerLoop

    @torch.no_grad()
    def at_the_end(self, meta: dict[str, Tensor], tasks: Task) -> dict[str, Tensor]:
        theta, stacked = self._flat(meta, tasks)
        state = self.loop.run(self.loop.windows(stacked), self.loop.begin(theta, stacked), theta)
        return self._measured(state, theta, stacked)

    @torch.no_grad()
    def after_each_window(self, meta: dict[str, Tensor], tasks: Task) -> list[dict[str, Tensor]]:
        """The first is before any"""
        theta, stacked = self._flat(meta, tasks)
        state = self.loop.begin(theta, stacked)
        found = [self._measured(state, theta, stacked)]
        for window in self.loop.windows(stacked):
            state = self.loop.run([window], state, theta)
            found.append(self._measured(state, theta, stacked))
        return found

    def _flat(self, meta: dict[str, Tensor], tasks: Task) -> tuple[Tensor, Task]:
        return self.chain.to_flat(meta), Task(*(_channels_last(self.chain, *batch) for batch in tasks))

    def _measured(self, state: State, theta: Tensor, tasks: Task) -> dict[str, Tensor]:
        metrics: dict[str, Tensor] = self.loop.problem.outer_loss(state.params, theta, tasks)[1]
        return metrics


class Places(NamedTuple):
    """What `to_flat` and `from_flat` do, as numbers: then each is one pass instead of one for every parameter"""

    into: Tensor  # (length,): which entry of the joined parameters, from 1; 0 fills up
    back: Tensor

    @classmethod
    def of(cls, chain: Chain, meta: dict[str, Tensor]) -> Self:
        vector = joined(meta)
        into = chain.to_flat(parted(torch.arange(1, vector.numel() + 1, device=vector.device), meta))
        back = chain.from_flat(torch.arange(chain.length, device=vector.device), meta)
        return cls(into, joined({name: back[name] for name in meta}))

    def to_flat(self, meta: dict[str, Tensor]) -> Tensor:
        vector = joined(meta)
        return torch.cat([vector.new_zeros(1), vector])[self.into]

    def from_flat(self, flat: Tensor, meta: dict[str, Tensor]) -> dict[str, Tensor]:
        by_name: dict[str, Tensor] = parted(flat[self.back], meta)
        return by_name


def _channels_last(chain: Chain, x: Tensor, y: Tensor) -> Batch:
    first = chain.blocks[0]
    if x.shape[2:] != (first.inputs, first.size, first.size):
        raise MetastepError(
            f"pictures {tuple(x.shape[2:])} for a net that was prepared for {(first.inputs, first.size, first.size)}: "
            "give it pictures of that shape, or prepare it for these."
        )
    return x.permute(0, 1, 3, 4, 2).contiguous(), y
