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

from metastep.core.dynamics import Dynamics, State
from metastep.core.estimators import Estimate
from metastep.core.modules import draws_noise
from metastep.core.optimizers import from_optimizer, into_optimizer
from metastep.core.problems import params_of
from metastep.core.random import seed_noise
from metastep.core.tasks import require_finite, write_grads
from metastep.core.trees import Tree, joined, map_tree, norm, parted, tree_leaves
from metastep.core.windows import Task
from metastep.errors import NonFiniteError
from metastep.step.capture import unit
from metastep.step.paths import MetaGradient, for_kernels
from metastep.step.ranks import Ranks
from metastep.step.streams import aside, wait_for
from metastep.train.fewshot.config import OuterConfig, TrainConfig
from metastep.train.fewshot.parts import Parts
from metastep.train.stop import Stop


class Found(NamedTuple):
    """What an iteration measured, over all ranks"""

    loss: Tensor
    accuracy: Tensor
    gradient_norm: Tensor  # of θ alone: rates, or an optimizer's memory, have units of their own
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
    reason = why_step_by_step(parts)
    return AsOneUnit(config, parts, ranks, done) if reason is None else StepByStep(config, parts, ranks, reason)


def why_step_by_step(parts: Parts) -> str | None:
    if parts.learner.device.type != "cuda":
        return "there is no GPU to record it on"
    if draws_noise(parts.learner.net):
        return "its net draws random numbers, which the sweep has to draw again"
    return None


class StepByStep:
    """One operator after the other, as Python calls them; the optimizer is PyTorch's"""

    queued = 1

    def __init__(self, config: TrainConfig, parts: Parts, ranks: Ranks, reason: str) -> None:
        self._config, self._parts, self._ranks = config, parts, ranks
        self.path = f"{parts.gradient.path}; one operator after the other: {reason}"

    def __call__(self, k: int, stop: Stop) -> Found:
        config, (learner, optimizer, gradient, draw, _) = self._config, self._parts
        first, tasks = self._ranks.share(config.outer.tasks)
        seed_noise(config.seed, k, first)
        batch = draw(k, tasks, first)
        local = gradient(learner.meta, batch)
        asked = local.loss.new_tensor(float(stop.requested))
        measured = local.grad, local.loss, local.metrics["accuracy"].mean(), asked
        grad, loss, accuracy, stops = self._ranks.total(measured, tasks / config.outer.tasks)
        whole, of_theta = norm(grad), params_of(grad)
        if not torch.isfinite(whole + loss):
            raise NonFiniteError(f"iteration {k + 1}: {why(gradient, learner.meta, batch, local)}")
        update(optimizer, config.outer, k, learner.meta, grad)
        return Found(loss, accuracy, whole if of_theta is grad else norm(of_theta), bool(stops > 0))

    def look(self, done: int) -> None:
        del done  # every iteration looks

    settle = look


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

    def __init__(self, config: TrainConfig, parts: Parts, ranks: Ranks, done: int) -> None:
        self._config, self._parts, self._ranks = config, parts, ranks
        self._named = {str(i): leaf for i, leaf in enumerate(tree_leaves(parts.learner.meta))}
        dynamics, start = from_optimizer(parts.optimizer, self._named)
        count = torch.tensor(float(done), dtype=torch.float64, device=parts.learner.device)
        state = State(joined(start.params), tuple(joined(moment) for moment in start.memory), count)
        self._first, self._tasks = ranks.share(config.outer.tasks)
        self._at = Prepared(state, self._draw(done), count.clone())
        self._asked = {stop: state.params.new_tensor(float(stop)) for stop in (False, True)}
        falling = config.outer.schedule == "linear"
        rate = (lambda meta, step: rate_of(config.outer, step)) if falling else config.outer.lr
        outer = for_kernels(replace(dynamics, lr=rate), state.params)
        self._unit = unit(self._iteration(outer), count.device)

    @property
    def path(self) -> str:
        return f"{self._parts.gradient.path}; {self._unit.path}"

    def __call__(self, k: int, stop: Stop) -> Found:
        # A CUDA graph reads the seed when it is replayed.
        seed_noise(self._config.seed, k, self._first)
        if self._ranks.count == 1:
            self._at, (loss, accuracy, length) = self._unit(self._at)
            return Found(loss, accuracy, length, stop.requested)
        self._at, (loss, accuracy, length, stops) = self._unit(self._at, self._asked[stop.requested])
        # All ranks look at the same time, so that they end at the same.
        return Found(loss, accuracy, length, (k + 1) % self.queued == 0 and bool(stops > 0))

    def look(self, done: int) -> None:
        made = int(self._at.state.step)
        if made < done:
            self._write()
            learner, gradient, batch = self._parts.learner, self._parts.gradient, self._draw(made)
            reason = why(gradient, learner.meta, batch, gradient(learner.meta, batch))
            raise NonFiniteError(f"iteration {made + 1}: {reason}")

    def settle(self, done: int) -> None:
        self.look(done)
        self._write()

    def _draw(self, k: int | Tensor) -> Task:
        return self._parts.draw(k, self._tasks, self._first)

    def _iteration(self, dynamics: Dynamics) -> Callable[..., tuple[Prepared, tuple[Tensor, ...]]]:
        """What it left, and (loss, accuracy, length of the meta-gradient of θ); nothing in it waits for the device

        With ranks, also whether one of them was asked to stop, as this one is told.
        """
        config, (learner, _, gradient, *_), device = self._config, self._parts, self._parts.learner.device
        share = self._tasks / config.outer.tasks
        of_theta = joined(params_of(learner.meta)).numel()  # it comes first

        def step(at: Prepared, *asked: Tensor) -> tuple[Prepared, tuple[Tensor, ...]]:
            state, batch, number = at
            with aside(device, "episodes"):
                following, next_number = self._draw(number.long() + 1), number + 1
            with aside(device, "made"):
                unbroken = number == state.step
            found = gradient(parted(state.params, learner.meta), batch)
            measured = joined(found.grad), found.loss, found.metrics["accuracy"].mean(), *asked
            grad, loss, accuracy, *stops = self._ranks.total(measured, share)
            with aside(device, "made"):
                whole = torch.linalg.vector_norm(grad)
                length = whole if of_theta == len(grad) else torch.linalg.vector_norm(grad[:of_theta])
                made = (whole + loss < torch.inf) & unbroken  # false of NaN too; neither is below 0
            after = dynamics.advance(state, clipped(grad, config.outer), (), 1)
            wait_for(device, "made")
            kept = map_tree(lambda new, old: torch.where(made, new, old), after, state)
            wait_for(device, "episodes")
            return Prepared(kept, following, next_number), (loss, accuracy, length, *stops)

        return torch.no_grad()(step)

    def _write(self) -> None:
        params, memory, step = self._at.state
        parts = State(parted(params, self._named), tuple(parted(moment, self._named) for moment in memory), step)
        into_optimizer(parts, self._parts.optimizer, self._named)


def why(gradient: MetaGradient, meta: Tree, batch: Task, local: Estimate) -> str:
    """Where a meta-step left the finite numbers"""
    try:
        require_finite(gradient.estimator, meta, batch, local)
    except NonFiniteError as error:
        return str(error)
    return "the meta-gradient is not finite, by the tasks of another rank or by its length. Lower the rates."
