"""`MetaStep`: one update of θ, with any optimizer of torch.optim, on one process or many."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from metastep.core.estimators import Estimate
from metastep.core.inner_clipping import by_value, shortened
from metastep.core.modules import tree_of
from metastep.core.options import Bound, Checked, require_number
from metastep.core.problems import few_shot_of
from metastep.core.tasks import require_order
from metastep.core.trees import Tree, map_tree, norm, tree_leaves
from metastep.errors import MetastepError, NonFiniteError
from metastep.step.arguments import STEP, require_examples, require_scheduler, require_state, require_step
from metastep.step.beginning import Beginning
from metastep.step.captured_update import ELSEWHERE, CapturedUpdate, over_ranks, why_not_captured
from metastep.step.gradient import MetaGradient
from metastep.step.ranks import Ranks, current_ranks

Draw = Callable[[Any], Any]  # the number of an update, counted from 0, as a number or tensor -> its tasks


class MetaStep(Checked):
    """Update θ in place: call it with tasks.

    On a GPU, a step of few-shot learning is captured in a CUDA graph. `path` says how updates are made. Under torchrun
    every process calls it with tasks of its own, and the meta-gradient is averaged over all tasks of all processes.

    An update that is not finite is not made, and ends in an error in every process. On a GPU the error comes at the
    next look, which is every 10 updates, since a look waits for the GPU.

    θ's own `.grad` is neither read nor changed. Frozen tensors of `meta` stay as they are.

    Args:
        gradient: The meta-gradient.
        meta: θ: a tree of tensors or a module. `gradient.init(net)` makes it.
        optimizer: Any torch.optim optimizer that holds the tensors of `meta`.
        clip: The largest norm of the meta-gradient; a longer one is scaled down.
        clip_value: The largest size of each element of the meta-gradient.
        warmup: Updates at the start that use first order's meta-gradient, which cannot explode.
        ramp: Updates over which the inner rate rises linearly to its value, in equal steps from lr / ramp.
        scheduler: A learning-rate scheduler of `optimizer`; it steps after every update. A ReduceLROnPlateau gets the
            outer loss.
        draw: A function of the number of an update that gives its tasks, if calls bring none. On a GPU it is captured
            too, so it must be made of tensor operations.
        ranks: The processes that take part. By default, those that torchrun started, or this one alone.
        updates: How many updates were made before, in an earlier process.

    Raises:
        MetastepError: The parts do not fit together.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> net = torch.nn.Linear(2, 1)
        >>> problem = ms.few_shot(net, torch.nn.functional.mse_loss)
        >>> gradient = ms.MetaGradient(problem, ms.MultiStep(window=2), ms.SGD(lr=0.1), steps=4)
        >>> meta = gradient.init(net)
        >>> step = ms.MetaStep(gradient, meta, torch.optim.Adam(ms.trees.leaves(meta), lr=1e-3), clip=1.0)
        >>> batch = torch.randn(4, 6, 2), torch.randn(4, 6, 1)  # 4 tasks of 6 examples
        >>> step(ms.Task(support=batch, query=batch)).metrics["loss"].shape
        torch.Size([4])
    """

    usage = STEP

    def __init__(
        self,
        gradient: MetaGradient,
        meta: Any,
        optimizer: Optimizer,
        *,
        clip: float | None = None,
        clip_value: float | None = None,
        warmup: int = 0,
        ramp: int = 0,
        scheduler: Any = None,
        draw: Draw | None = None,
        ranks: Ranks | None = None,
        updates: int = 0,
    ) -> None:
        _require_gradient(gradient, meta)
        self.gradient, self.meta, self.optimizer, self.scheduler = gradient, tree_of(meta), optimizer, scheduler
        require_step(self.meta, optimizer)
        require_scheduler(scheduler, optimizer)
        self.clip = Clip(clip, clip_value)
        self.beginning = Beginning(gradient, warmup, ramp, tree_leaves(self.meta)[0].device)
        self.updates = updates
        self.draw = draw
        self.ranks = ranks if ranks is not None else current_ranks(tree_leaves(self.meta)[0].device)
        if ranks is None:
            self.ranks.alike(tree_leaves(self.meta) + _held_constant(gradient))
        self._update = self._how()

    def __call__(self, tasks: Any = None, *others: Any) -> Estimate:
        """Make one update.

        Args:
            tasks: Stacked tasks, or a list of them; left out if `draw` gives them.
            others: Nothing: a step knows its meta.

        Returns:
            The estimate that θ was moved by: loss and gradient are means over all processes, metrics those of this
            process's tasks.

        Raises:
            NonFiniteError: This update, or one since the last look, was not finite and was not made.
        """
        if others or isinstance(tasks, torch.nn.Module):
            raise MetastepError("a MetaStep knows its meta: call step(tasks), with the tasks alone.")
        if (tasks is None) == (self.draw is None):
            said = "no tasks were given: call step(tasks)." if tasks is None else "`draw` gives the tasks: call step()."
            raise MetastepError(said)
        require_order(self.meta, tasks)
        if not isinstance(tasks, list):
            require_examples(self.gradient.problem, tasks)
        found = self._update(self.updates, tasks)
        self.updates += 1
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(found.loss)
        elif self.scheduler is not None:
            self.scheduler.step()
        if self.updates % self._update.queued == 0:
            self._update.look(self.updates)
        return found

    @property
    def path(self) -> str:
        """Say how updates are made, and why not faster."""
        return f"{self.beginning(max(0, self.updates - 1)).path}; {self._update.path}"

    @property
    def queued(self) -> int:
        """Updates that the device can be given at a time."""
        return self._update.queued

    def look(self) -> None:
        """Wait for the device, and raise if an update could not be made."""
        self._update.look(self.updates)

    def settle(self) -> None:
        """Wait until all updates are made, and bring meta and the optimizer up to date."""
        self._update.settle(self.updates)

    def state_dict(self) -> dict[str, Any]:
        """Return all that an interrupted training needs to continue.

        Returns:
            A dict with the leaves of meta, the states of optimizer and scheduler, the number of updates, and what the
            clock has chosen (`benchmark=True`), so that a resumed training repeats it.
        """
        self.settle()
        return {
            "meta": [leaf.detach().clone() for leaf in tree_leaves(self.meta)],
            "optimizer": deepcopy(self.optimizer.state_dict()),  # PyTorch returns the tensors that it keeps using
            "scheduler": None if self.scheduler is None else deepcopy(self.scheduler.state_dict()),
            "updates": self.updates,
            "choices": self.gradient.choices.measured.copy(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned.

        Args:
            state: That state.

        Raises:
            MetastepError: It belongs to another θ, optimizer or scheduler; nothing was changed.
        """
        leaves = tree_leaves(self.meta)
        require_state(state, leaves, self.optimizer, self.scheduler)
        self.optimizer.load_state_dict(deepcopy(state["optimizer"]))  # it refuses other groups before it changes any
        if self.scheduler is not None:
            self.scheduler.load_state_dict(deepcopy(state["scheduler"]))
        for leaf, saved in zip(leaves, state["meta"], strict=True):
            leaf.copy_(saved)
        self.updates = state["updates"]
        self.gradient.choices.repeat(state["choices"])
        self._update = self._how()

    def _how(self) -> "EagerUpdate | CapturedUpdate":
        reason = why_not_captured(self.gradient, self.meta, self.optimizer)
        if reason is None:
            return CapturedUpdate(self)
        return EagerUpdate(self, f"running eagerly: {reason}")


class EagerUpdate:
    """The meta-gradient, and then the optimizer's own step. Its parts are those of `CapturedUpdate`."""

    queued = 1

    def __init__(self, step: MetaStep, path: str) -> None:
        self._step, self.path = step, path

    def __call__(self, number: int, tasks: Any) -> Estimate:
        step = self._step
        tasks = step.draw(number) if step.draw else tasks
        local, broken = _local(step.beginning(number), step.meta, tasks)
        found = over_ranks(step.ranks, local, tasks)
        moved: dict[Tensor, Tensor] = {}
        for leaf, grad in zip(tree_leaves(step.meta), tree_leaves(found.grad), strict=True):
            if leaf.requires_grad:  # a tensor may stand in several places of θ
                moved[leaf] = moved[leaf] + grad if leaf in moved else grad
        length = norm(list(moved.values()))
        if not torch.isfinite(length + found.loss):
            raise NonFiniteError(f"update {number + 1}: {broken or ELSEWHERE}")
        self._move(dict(zip(moved, step.clip(list(moved.values()), length), strict=True)))
        return found

    def _move(self, grads: dict[Tensor, Tensor]) -> None:
        before = [leaf.grad for leaf in tree_leaves(self._step.meta)]
        for leaf in tree_leaves(self._step.meta):
            leaf.grad = grads.get(leaf)
        try:
            self._step.optimizer.step()
        finally:
            for leaf, grad in zip(tree_leaves(self._step.meta), before, strict=True):
                leaf.grad = grad

    def look(self, updates: int) -> None:
        """Do nothing: every update looks."""

    settle = look


def _local(gradient: MetaGradient, meta: Tree, tasks: Any) -> tuple[Estimate, str]:
    """Return the estimate over the tasks of this process. If it is not finite: NaN for all processes, and why."""
    try:
        return gradient(meta, tasks), ""
    except NonFiniteError as error:
        nothing = map_tree(lambda leaf: torch.full_like(leaf.detach(), torch.nan), meta)
        return Estimate(tree_leaves(meta)[0].detach().real.new_tensor(torch.nan), nothing, {}), str(error)


class Clip:
    """Clip the meta-gradient: by its norm, or by the size of each element."""

    def __init__(self, norm: float | None, value: float | None) -> None:
        for name, number in {"clip": norm, "clip_value": value}.items():
            if number is not None:
                require_number(number, Bound(gt=0), name)
        if norm is not None and value is not None:
            raise MetastepError(f"clip = {norm} and clip_value = {value} exclude each other. Give one of them.")
        self.norm, self.value = norm, value

    def __call__(self, grad: Tree, length: Tensor) -> Tree:
        if self.value is not None:
            return by_value(grad, self.value)
        return grad if self.norm is None else shortened(grad, length, self.norm)


def _require_gradient(gradient: Any, meta: Any) -> None:
    if not isinstance(gradient, MetaGradient):
        raise MetastepError(f"{type(gradient).__name__} is not a MetaGradient. {STEP}")
    if isinstance(meta, MetaGradient | Optimizer):
        raise MetastepError(f"meta is a {type(meta).__name__}, but must be a module or a tree of tensors. {STEP}")


def _held_constant(gradient: MetaGradient) -> list[Tensor]:
    """Return what all processes must have in common besides θ: frozen parameters and buffers of the module."""
    few_shot = few_shot_of(gradient.problem)
    return [] if few_shot is None else [*few_shot.module.parameters(), *few_shot.module.buffers()]
