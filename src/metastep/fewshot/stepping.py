"""One iteration of few-shot meta-training: step by step, or as one unit that a GPU replays without the host.

Both draw the same episodes and take the same step. As one unit, whoever waits for the device does so rarely: an update
that is not finite is not made, and is not counted, so that the count of updates tells where it was when asked.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from metastep.dynamics import Dynamics, State
from metastep.engine import unit
from metastep.errors import NonFiniteError
from metastep.estimators import Estimate
from metastep.fewshot.config import OuterConfig, TrainConfig
from metastep.fewshot.distributed import Ranks
from metastep.fewshot.parts import Parts
from metastep.fewshot.sampling import seed_noise
from metastep.modules import draws_noise
from metastep.optimizers import from_optimizer, into_optimizer
from metastep.paths import MetaGradient, for_kernels
from metastep.runs import Stop
from metastep.streams import beside, join
from metastep.tasks import require_finite, write_grads
from metastep.trees import Tree, joined, map_tree, norm, parted, scale, tree_leaves
from metastep.windows import Task


class Found(NamedTuple):
    """What an iteration measured, over all ranks"""

    loss: Tensor
    accuracy: Tensor
    gradient_norm: Tensor
    stop: bool  # a rank was asked to


class Stepper(Protocol):
    @property
    def path(self) -> str:
        """How iterations are made, and why not otherwise"""

    @property
    def queued(self) -> int:
        """Iterations to call at a time: the device makes them while others have their turn"""

    def __call__(self, k: int, stop: Stop) -> Found:
        """Iteration k, counted from 0"""

    def look(self, done: int) -> None:
        """Wait until `done` iterations are made, and say if they could not be"""

    def settle(self, done: int) -> None:
        """The same; then learner and optimizer are where the run is"""


def stepper(config: TrainConfig, parts: Parts, ranks: Ranks, done: int) -> Stepper:
    """`done`: the iterations that learner and optimizer have made"""
    reason = why_step_by_step(parts, ranks)
    return AsOneUnit(config, parts, done) if reason is None else StepByStep(config, parts, ranks, reason)


def why_step_by_step(parts: Parts, ranks: Ranks) -> str | None:
    if parts.learner.device.type != "cuda":
        return "there is no GPU to replay it"
    if ranks.count > 1:
        return "ranks meet in each"
    if draws_noise(parts.learner.net):
        return "its net draws random numbers, which the sweep has to draw again"
    return None


class StepByStep:
    """One operator after the other, as Python calls them; the optimizer is PyTorch's"""

    queued = 1

    def __init__(self, config: TrainConfig, parts: Parts, ranks: Ranks, reason: str) -> None:
        self._config, self._parts, self._ranks = config, parts, ranks
        self.path = f"{parts.gradient.path}; step by step: {reason}"

    def __call__(self, k: int, stop: Stop) -> Found:
        config, (learner, optimizer, gradient, draw, _) = self._config, self._parts
        first, tasks = self._ranks.share(config.outer.tasks)
        seed_noise(config.seed, k, first)
        batch = draw(k, tasks, first)
        local = gradient(learner.meta, batch)
        part = part_of_step(local, tasks / config.outer.tasks, stop.requested)
        grad, loss, accuracy, stops = self._ranks.total(part)
        found = Found(loss, accuracy, norm(grad), bool(stops > 0))
        if not torch.isfinite(found.gradient_norm + found.loss):
            raise NonFiniteError(f"iteration {k + 1}: {why(gradient, learner.meta, batch, local)}")
        update(optimizer, config.outer, k, learner.meta, grad)
        return found

    def look(self, done: int) -> None:
        del done  # every iteration looks

    settle = look


def part_of_step(local: Estimate, weight: float, stop: bool) -> tuple[Tree, Tensor, Tensor, Tensor]:
    """What this rank adds to the sum over ranks; `weight` is its share of the tasks"""
    grad, loss, accuracy = scale(weight, (local.grad, local.loss, local.metrics["accuracy"].mean()))
    return grad, loss, accuracy, loss.new_tensor(float(stop))


def update(optimizer: Optimizer, outer: OuterConfig, k: int, meta: Tree, grad: Tree) -> None:
    write_grads(meta, map_tree(lambda g: clipped(g, outer), grad))
    for group in optimizer.param_groups:
        group["lr"] = rate_of(outer, k)
    optimizer.step()


def clipped(grad: Tensor, outer: OuterConfig) -> Tensor:
    return grad if outer.clip is None else grad.clamp(-outer.clip, outer.clip)


def rate_of(outer: OuterConfig, k: Any) -> Any:
    return outer.lr * (1 - k / outer.iterations) if outer.schedule == "linear" else outer.lr


class Prepared(NamedTuple):
    """All that an iteration changes"""

    state: State  # θ as one vector, the optimizer's moments, and how many iterations were made
    batch: Task  # of the next one: drawn beside the one before it
    number: Tensor  # which iteration that is; above the count of state once an iteration could not be made


class AsOneUnit:
    """An iteration as a function of what the last one left; the host only starts it"""

    queued = 10

    def __init__(self, config: TrainConfig, parts: Parts, done: int) -> None:
        self._config, self._parts = config, parts
        self._named = {str(i): leaf for i, leaf in enumerate(tree_leaves(parts.learner.meta))}
        dynamics, start = from_optimizer(parts.optimizer, self._named)
        count = torch.tensor(float(done), dtype=torch.float64, device=parts.learner.device)
        state = State(joined(start.params), tuple(joined(moment) for moment in start.memory), count)
        self._at = Prepared(state, parts.draw(done, config.outer.tasks), count.clone())
        falling = config.outer.schedule == "linear"
        rate = (lambda meta, step: rate_of(config.outer, step)) if falling else config.outer.lr
        outer = for_kernels(replace(dynamics, lr=rate), state.params)
        self._unit = unit(iteration(config, parts, outer), count.device)

    @property
    def path(self) -> str:
        return f"{self._parts.gradient.path}; {self._unit.path}"

    def __call__(self, k: int, stop: Stop) -> Found:
        seed_noise(self._config.seed, k, 0)  # of random directions; a CUDA graph reads the seed when it is replayed
        self._at, (loss, accuracy, length) = self._unit(self._at)
        return Found(loss, accuracy, length, stop.requested)

    def look(self, done: int) -> None:
        made = int(self._at.state.step)
        if made < done:
            self._write()
            learner, _, gradient, draw, _ = self._parts
            batch = draw(made, self._config.outer.tasks)
            reason = why(gradient, learner.meta, batch, gradient(learner.meta, batch))
            raise NonFiniteError(f"iteration {made + 1}: {reason}")

    def settle(self, done: int) -> None:
        self.look(done)
        self._write()

    def _write(self) -> None:
        params, memory, step = self._at.state
        parts = State(parted(params, self._named), tuple(parted(moment, self._named) for moment in memory), step)
        into_optimizer(parts, self._parts.optimizer, self._named)


def iteration(config: TrainConfig, parts: Parts, dynamics: Dynamics) -> Callable[[Prepared], tuple[Prepared, Any]]:
    """What it left, and (loss, accuracy, length of the meta-gradient); nothing in it waits for the device"""
    device = parts.learner.device

    def step(at: Prepared) -> tuple[Prepared, tuple[Tensor, Tensor, Tensor]]:
        state, batch, number = at
        with beside(device, "episodes"):
            following, next_number = parts.draw(number.long() + 1, config.outer.tasks), number + 1
        with beside(device, "made"):
            unbroken = number == state.step
        found = parts.gradient(parted(state.params, parts.learner.meta), batch)
        grad = joined(found.grad)
        with beside(device, "made"):
            length = torch.linalg.vector_norm(grad)
            made = (length + found.loss < torch.inf) & unbroken  # false of NaN too; neither is below 0
        after = dynamics.advance(state, clipped(grad, config.outer), (), 1)
        accuracy = found.metrics["accuracy"].mean()
        join(device, "made")
        kept = map_tree(lambda new, old: torch.where(made, new, old), after, state)
        join(device, "episodes")
        return Prepared(kept, following, next_number), (found.loss, accuracy, length)

    return torch.no_grad()(step)


def why(gradient: MetaGradient, meta: Tree, batch: Task, local: Estimate) -> str:
    """Where a meta-step left the finite numbers"""
    try:
        require_finite(gradient.estimator, meta, batch, local)
    except NonFiniteError as error:
        return str(error)
    return "the meta-gradient is not finite, by the tasks of another rank or by its length. Lower the rates."
