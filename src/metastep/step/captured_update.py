"""An update as one unit that a GPU replays without the host.

Nobody waits for the device, so an update that is not finite is not made and is not counted: the count of updates tells
at the next look which one it was.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from metastep.core.estimators import Estimate
from metastep.core.modules import draws_noise
from metastep.core.optimizers import SGD, InnerOptimizer, State
from metastep.core.problems import few_shot_of
from metastep.core.tasks import require_finite, stack, task_count
from metastep.core.torch_originals import ours, to_torch
from metastep.core.trees import Tree, from_vector, map_tree, to_vector, tree_leaves, zeros_like
from metastep.errors import MetastepError, NonFiniteError, first_line
from metastep.step.capture import Unit, aside, unit, wait_for
from metastep.step.chain.serving import for_kernels
from metastep.step.differentiate import Nesting
from metastep.step.gradient import MetaGradient
from metastep.step.ranks import Ranks

if TYPE_CHECKING:
    from metastep.step.update import MetaStep

Settings = list[dict[str, Any]]  # the options of an optimizer's groups


class Prepared(NamedTuple):
    """All that an update changes."""

    state: State
    """θ as one vector, the optimizer's memory, and how many updates were made."""
    number: Tensor
    """The number of the next update; above the count of `state` once an update could not be made."""
    tasks: Any
    """The tasks of the next update, drawn concurrently with the one before it; () if calls bring them."""


class CapturedUpdate:
    """An update as a function of what the last one left. The host only starts it."""

    queued = 10
    """Updates between two looks at whether they could be made. A look waits for the device."""

    def __init__(self, step: "MetaStep") -> None:
        self._step, self._named = step, {str(i): leaf for i, leaf in enumerate(tree_leaves(step.meta))}
        self._theta, self._grad = Parted(self._named), Parted(step.meta)
        self._recent: dict[int, Any] = {}
        self._at: Prepared
        self._prepare(step.updates, moving=step.scheduler is not None)
        step.optimizer.__dict__["_opt_called"] = True  # else schedulers warn that no step of it was called

    @property
    def path(self) -> str:
        return self._unit.path

    def __call__(self, number: int, tasks: Any) -> Estimate:
        self._keep_up(number)
        if self._step.draw is not None:
            self._at, found = self._unit(self._at, *self._rate())
            return self._estimate(found)
        self._recent[number] = tasks
        self._take()
        self._at, found = self._unit(self._at, *self._rate(), tasks)
        self._give()
        return self._estimate(map_tree(torch.clone, found))  # what a replay gives, the next one overwrites

    def look(self, updates: int) -> None:
        """Wait for the device. Raise if one of so many updates was not made."""
        made = int(self._at.state.step)
        if made < updates:
            self._write()
            step = self._step
            tasks = step.draw(made) if step.draw else self._recent[made]
            gradient = step.beginning(made)
            reason = _why(gradient, step.meta, tasks, gradient.unchecked(step.meta, tasks))
            raise NonFiniteError(f"update {made + 1}: {reason}")
        self._recent.clear()

    def settle(self, updates: int) -> None:
        """The same; then meta and optimizer are up to date."""
        self.look(updates)
        self._write()

    def _prepare(self, updates: int, moving: bool) -> None:
        """moving: the learning rate is an input of the unit, since it changes"""
        step = self._step
        self._gradient = step.beginning(updates)
        self._settings, self._fingerprint = settings_of(step.optimizer), self._gradient.fingerprint()
        dynamics, start = ours(step.optimizer, self._named)
        start = first_memory(dynamics, start)
        count = torch.tensor(float(updates), dtype=torch.float64, device=tree_leaves(step.meta)[0].device)
        state = State(to_vector(start.params), tuple(to_vector(part) for part in start.memory), count)
        self._at = Prepared(state, count.clone(), step.draw(updates) if step.draw else ())
        self._moving = moving
        outer = dynamics if moving else for_kernels(dynamics, state.params)
        self._unit: Unit = unit(self._iteration(outer), count.device)

    def _keep_up(self, number: int) -> None:
        """Record anew if an attribute of the module or an option of the optimizer has changed: a graph freezes both.

        So it does where the beginning of a training ends. While the inner rate rises, the graph reads it.
        """
        settings, gradient = settings_of(self._step.optimizer), self._step.beginning(number)
        if gradient is self._gradient and gradient.fingerprint() == self._fingerprint and self._same(settings):
            return
        rates_changed = [g["lr"] for g in settings] != [g["lr"] for g in self._settings]
        self.settle(number)
        self._prepare(number, self._moving or rates_changed)

    def _same(self, settings: Settings) -> bool:
        read = {"lr": 0} if self._moving else {}  # what the unit reads anew
        return [group | read for group in settings] == [group | read for group in self._settings]

    def _rate(self) -> tuple[Tensor, ...]:
        if not self._moving:
            return ()
        rate = float(self._step.optimizer.param_groups[0]["lr"])
        return (torch.full_like(self._at.number, rate),)

    def _iteration(self, dynamics: InnerOptimizer) -> Callable[..., tuple[Prepared, tuple[Any, ...]]]:
        """Return the state after an update, and (loss, meta-gradient, metrics, growth if there is one).

        Nothing in it waits for the device.
        """
        step, gradient, device = self._step, self._gradient, tree_leaves(self._step.meta)[0].device

        def iteration(at: Prepared, *given: Any) -> tuple[Prepared, tuple[Any, ...]]:
            state, number, tasks = at
            rate, tasks = (given[0], tasks) if self._moving else (None, tasks)
            tasks = tasks if step.draw else given[-1]
            with aside(device, "episodes"):
                following = step.draw(number.long() + 1) if step.draw else ()
                next_number = number + 1
            with aside(device, "made"):
                unbroken = number == state.step
            local = gradient.unchecked(from_vector(state.params, step.meta), tasks)
            found = over_ranks(step.ranks, local, tasks)
            grad = to_vector(found.grad)
            with aside(device, "made"):
                length = torch.linalg.vector_norm(grad)
                made = (length + found.loss < torch.inf) & unbroken  # false of NaN too; neither is below 0
            moving = dynamics if rate is None else replace(dynamics, lr=lambda meta, step: rate)  # type: ignore[type-var]
            clipped = step.clip(grad, length)
            after = moving.advance(state, clipped, (), 1)
            wait_for(device, "made")
            kept = map_tree(lambda new, old: torch.where(made, new, old), after, state)
            wait_for(device, "episodes")
            grown = () if found.growth is None else (found.growth,)
            return Prepared(kept, next_number, following), (found.loss, grad, found.metrics, *grown)

        return torch.no_grad()(iteration)

    def _estimate(self, found: tuple[Any, ...]) -> Estimate:
        loss, grad, metrics, *growth = found
        return Estimate(loss, self._grad(grad), metrics, None, *growth)

    @torch.no_grad()
    def _take(self) -> None:
        """Read θ, which the caller may have changed since."""
        torch._foreach_copy_(self._theta.leaves(self._at.state.params), list(self._named.values()))

    @torch.no_grad()
    def _give(self) -> None:
        torch._foreach_copy_(list(self._named.values()), self._theta.leaves(self._at.state.params))

    def _write(self) -> None:
        params, memory, step = self._at.state
        parts = State(from_vector(params, self._named), tuple(from_vector(part, self._named) for part in memory), step)
        to_torch(parts, self._step.optimizer, self._named)


ELSEWHERE = "the meta-gradient is not finite, by the tasks of another process or by its norm. Lower the learning rates."


def over_ranks(ranks: Ranks, local: Estimate, tasks: Any) -> Estimate:
    """Return the estimate over the tasks of all processes."""
    number = len(tasks) if isinstance(tasks, list) else task_count(tasks)
    grad, loss = ranks.mean((local.grad, local.loss), number)
    return local._replace(grad=grad, loss=loss)


def _why(gradient: MetaGradient, meta: Tree, tasks: Any, local: Estimate) -> str:
    """Return where a meta-gradient stopped being finite, in words."""
    try:
        require_finite(lambda i: gradient.loop, meta, stack(tasks) if isinstance(tasks, list) else tasks, local)
    except NonFiniteError as error:
        return str(error)
    return ELSEWHERE


class Parted:
    """Read a vector as a tree. The views are made once for each vector, since a replay writes into the same one."""

    def __init__(self, like: Tree) -> None:
        self._nesting, self._like = Nesting(like), like
        self._vector, self._leaves = torch.empty(0), list[Tensor]()

    def leaves(self, vector: Tensor) -> list[Tensor]:
        if vector is not self._vector:
            self._vector, self._leaves = vector, self._nesting.leaves(from_vector(vector, self._like))
        return self._leaves

    def __call__(self, vector: Tensor) -> Tree:
        return self._nesting.tree(self.leaves(vector))


def why_not_captured(gradient: MetaGradient, meta: Tree, optimizer: Optimizer) -> str | None:
    """Return why updates cannot be captured in a CUDA graph, or None if they can."""
    leaves = tree_leaves(meta)
    if any(leaf.device.type != "cuda" for leaf in leaves):
        return "CUDA graphs need a GPU"
    few_shot = few_shot_of(gradient.problem)
    if few_shot is None or not _is_torchs(few_shot.loss):
        return "a CUDA graph would freeze the values that a loss of your own reads"
    if draws_noise(few_shot.module):
        return "the module draws random numbers, which the sweep must draw again"
    return why_not_functional(meta, optimizer)


def why_not_functional(meta: Tree, optimizer: Optimizer) -> str | None:
    """Return why the optimizer's step cannot be a function of one vector, or None if it can."""
    leaves = {str(i): leaf for i, leaf in enumerate(tree_leaves(meta))}
    if len({id(leaf) for leaf in leaves.values()}) < len(leaves):
        return "a tensor stands in several places of meta"
    if len({leaf.dtype for leaf in leaves.values()}) > 1 or not all(leaf.requires_grad for leaf in leaves.values()):
        return "tensors of meta differ in precision, or some are frozen"
    try:
        dynamics, _ = ours(optimizer, leaves)
    except MetastepError as error:
        return first_line(error)
    if not dynamics.has_plain_numbers:
        return "parameter groups have options of their own"
    if isinstance(dynamics, SGD) and dynamics.momentum and dynamics.dampening:
        return "the first step of SGD with dampening differs from all others"
    return None


def first_memory(dynamics: InnerOptimizer, start: State) -> State:
    """Return memory before the first step. SGD makes its velocity then; a graph needs it from the start, as zeros."""
    if isinstance(dynamics, SGD) and dynamics.momentum and not start.memory:
        return start._replace(memory=(zeros_like(start.params),))
    return start


def settings_of(optimizer: Optimizer) -> Settings:
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def _is_torchs(loss: Any) -> bool:
    """Return whether a loss is PyTorch's own, so that it reads nothing that changes between calls."""
    return str(getattr(loss, "__module__", None) or type(loss).__module__).startswith("torch.")
