"""Optimizers of torch.optim that are the `original` of a registered one: as metastep's own, and back."""

import copy
import warnings
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from metastep.core import registry
from metastep.core.entrywise import State, is_linear
from metastep.core.rates import Rate
from metastep.core.torch_state import is_torchs, listed, plain_options
from metastep.core.trees import Tree, is_number, map_tree, require_same, tree_flatten_with_path, tree_leaves
from metastep.core.value import Value
from metastep.errors import MetastepError, first_line, how_many

_UNSUPPORTED = ("maximize", "amsgrad", "centered")


class NotOursError(MetastepError):
    """Say why a torch.optim optimizer is none of metastep's own."""


def ours(optimizer: Optimizer, parameters: Tree) -> tuple[Any, State]:
    """Return the equal optimizer of ours, and its state for `parameters`, a tree like φ.

    The state is copied, so that nothing is shared.
    """
    kind, groups = _equal_of(optimizer), _groups(optimizer, parameters)
    for group in groups:
        if wrong := [option for option in _UNSUPPORTED if group.get(option)]:
            raise NotOursError(f"{kind.__name__} with {wrong[0]}=True is none of metastep's own")
    options = [plain_options(group) for group in groups]
    if len({tuple(group.get(flag) for flag in ("nesterov", "decoupled_weight_decay")) for group in options}) > 1:
        raise NotOursError(f"parameter groups of {kind.__name__} differ in a flag")
    decoupled = options[0].get("decoupled_weight_decay")  # Adam with this flag is AdamW
    alike = (each for each in _with_slots() if each.slots == kind.slots)
    cls = next(each for each in alike if getattr(each, "decoupled_weight_decay", None) == decoupled)
    inner = cls(**{field.name: _option([group[field.name] for group in options], parameters) for field in fields(cls)})
    momenta = [group.get("momentum") for group in options]
    return inner, _state(optimizer, parameters, inner, [m == 0 for m in momenta])


def _option(values: list[Any], tree: Tree) -> Any:
    """Return one option of all parameters: a number if they agree, else a tree."""
    if isinstance(values[0], tuple):
        return tuple(_option(list(each), tree) for each in zip(*values, strict=True))
    if len(set(values)) == 1:
        return float(values[0]) if is_number(values[0]) else values[0]
    leaves = iter(values)
    return map_tree(lambda p: next(leaves), tree)


def _state(optimizer: Optimizer, parameters: Tree, inner: Any, momentless: list[bool]) -> State:
    """Return the state of ours. `momentless`: parameters without momentum, which get a memory that is not used."""
    leaves, slots = tree_leaves(parameters), inner.slots
    stored = [optimizer.state.get(p, {}) for p in leaves]
    taken = [int(s.get("step", 1 if s.get(slots[0]) is not None else 0)) for s in stored]
    without = momentless if slots == ("momentum_buffer",) else [False] * len(leaves)
    counted = [n for n, is_without in zip(taken, without, strict=True) if not is_without] or taken
    if len(set(counted)) > 1:
        raise NotOursError("its parameters have taken different numbers of steps")
    params, step = map_tree(lambda p: p.detach().clone(), parameters), counted[0]
    if step == 0:
        return inner.init(params)  # type: ignore[no-any-return]
    if not all(without):
        stored = [{slots[0]: torch.zeros_like(p)} if w else s for p, s, w in zip(leaves, stored, without, strict=True)]
    kept = [slot for slot in slots if all(s.get(slot) is not None for s in stored)]
    return State(params, tuple(_like(parameters, [s[slot].detach().clone() for s in stored]) for slot in kept), step)


def _like(tree: Tree, leaves: list[Any]) -> Tree:
    given = iter(leaves)
    return map_tree(lambda p: next(given), tree)


@torch.no_grad()
def to_torch(state: State, optimizer: Optimizer, parameters: Any) -> None:
    """Give a state to an optimizer of torch.optim: φ to its parameters, memory and count to its own state.

    Args:
        state: Where an inner optimizer stands.
        optimizer: One of torch.optim that a registered optimizer equals, of the kind that the state was made with.
        parameters: The module whose parameters it holds, or a tree of them like φ.

    Raises:
        MetastepError: State and parameters are not alike.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> net = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.Adam(net.parameters())
        >>> inner = ms.optimizers.from_torch(optimizer, net)
        >>> state = inner.init(ms.parameters(net))
        >>> state = inner.advance(state, ms.parameters(net), None, 3)
        >>> ms.optimizers.to_torch(state, optimizer, net)
        >>> optimizer.state[net.bias]["step"]
        tensor(3.)
    """
    tree = parameters_of(optimizer, parameters)
    require_same(tree, state.params, "parameters and the state's params")
    for i, (p, value) in enumerate(zip(tree_leaves(tree), tree_leaves(state.params), strict=True)):
        p.copy_(value)
        optimizer.state[p].update(_slots_of(state, optimizer, i))


def _slots_of(state: State, optimizer: Optimizer, i: int) -> dict[str, Any]:
    """Return the state of one parameter as torch.optim names it."""
    if isinstance(state.memory, list):
        raise MetastepError(
            f"a state of {type(optimizer).__name__} that was traced cannot be written back, only one of {_names()}. "
            "Copy φ from state.params, and the memory from state.memory."
        )
    slots = _equal_of(optimizer).slots
    own = {slot: tree_leaves(tree)[i].detach().clone() for slot, tree in zip(slots, state.memory, strict=False)}
    return own if slots[0] == "momentum_buffer" else own | {"step": torch.tensor(float(state.step))}


def _with_slots() -> list[Any]:
    """Return the registered optimizers that say what their original calls its memory."""
    kinds = (registry.named("optimizer", name) for name in registry.names("optimizer"))
    return [kind for kind in kinds if hasattr(kind, "slots") and hasattr(kind, "original")]


def _names() -> str:
    *names, last = (kind.__name__ for kind in _with_slots())
    return f"{', '.join(names)} and {last}"


def _equal_of(optimizer: Optimizer) -> Any:
    """Return the class of ours whose original this is, not a subclass with steps of its own."""
    for kind in _with_slots():
        if isinstance(optimizer, kind.original) and is_torchs(type(optimizer)):
            return kind
    raise NotOursError(f"{type(optimizer).__name__} is none of metastep's own, which are {_names()} of torch.optim")


def _groups(optimizer: Optimizer, tree: Tree) -> list[dict[str, Any]]:
    """Return the group of each parameter."""
    of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    named = tree_flatten_with_path(tree)[0]
    if missing := [path for path, p in named if id(p) not in of]:
        raise NotOursError(f"the optimizer does not hold {listed(missing[:1])}")
    return [of[id(p)] for _, p in named]


def parameters_of(optimizer: Optimizer, parameters: Any) -> Tree:
    """Return the parameters by name, as a tree like φ, or None if nobody says how they are named."""
    if parameters is None:
        if not all("param_names" in group for group in optimizer.param_groups):
            return None
        return {
            n: p for group in optimizer.param_groups for n, p in zip(group["param_names"], group["params"], strict=True)
        }
    tree = dict(parameters.named_parameters()) if isinstance(parameters, nn.Module) else parameters
    leaves = tree_leaves(tree)
    if not leaves or not all(isinstance(p, Tensor) for p in leaves):
        raise MetastepError(
            f"parameters is a {type(parameters).__name__}: give the module, or a tree of its parameters like φ, such "
            "as dict(module.named_parameters())."
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(p) in held for p in leaves):
        raise MetastepError(
            f"{type(optimizer).__name__} holds none of these parameters. Make it of the parameters of the module that "
            "is adapted: ms.parameters(net).values() are the module's own."
        )
    return tree


@dataclass(frozen=True, eq=False, repr=False)
class Continuing(Value):
    """Wrap an optimizer of ours that continues from the memory of a real one."""

    inner: Any
    memory: Any
    begin: int

    def __repr__(self) -> str:
        return f"{self.inner!r} after {how_many(self.begin, 'step')}"

    @property
    def lr(self) -> Rate:
        """The learning rate, which Meta-SGD learns."""
        return self.inner.lr

    def with_lr(self, lr: Rate) -> "Continuing":
        """Return the same with another learning rate."""
        return replace(self, inner=replace(self.inner, lr=lr))

    @property
    def weight_decay(self) -> Rate:
        """That of the optimizer inside."""
        return self.inner.weight_decay

    def init(self, params: Tree) -> State:
        memory = map_tree(torch.clone, self.memory)
        for part in memory:
            require_same(params, part, "φ and the memory of the optimizer")
        return State(params, memory, self.begin)

    def advance(self, state: State, grad: Tree, meta: Tree, steps: int) -> State:
        return self.inner.advance(state, grad, meta, steps)  # type: ignore[no-any-return]

    def is_linear(self, state: State, meta: Tree, steps: int) -> bool:
        """As the optimizer inside."""
        return is_linear(self.inner, state, meta, steps)


# ---- schedulers of torch.optim as functions of (meta, step)


MOVED = ("lr", "momentum", "betas")  # what the schedulers of torch.optim change


class Schedule:
    """Say what a scheduler sets the options of each group to, after any number of steps. It is run on copies.

    Args:
        optimizer: The optimizer that the scheduler was made for.
        scheduler: The scheduler. Its own count of steps is where the inner loop begins.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, scheduler: LRScheduler) -> None:
        _require_scheduler(optimizer, scheduler)
        copied = object.__new__(type(optimizer))
        groups = [plain_options(group) | {"params": []} for group in optimizer.param_groups]
        vars(copied).update(vars(optimizer), param_groups=groups)
        self._scheduler: Any = copy.deepcopy(scheduler, {id(optimizer): copied})
        self._table: list[list[dict[str, Any]]] = [self._options()]

    def __call__(self, step: int) -> list[dict[str, Any]]:
        """Return the options of each group for a step, counted from where the inner loop begins."""
        while len(self._table) <= step:
            self._advance()
        return self._table[step]

    def moved(self) -> list[str]:
        """Return the options that it changes."""
        cycles = getattr(self._scheduler, "cycle_momentum", False)
        return ["lr", *(name for name in ("momentum", "betas") if cycles and name in self._table[0][0])]

    def _advance(self) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that the optimizer itself makes no step
                self._scheduler.step()
        except ValueError as error:
            raise MetastepError(
                f"{type(self._scheduler).__name__} gives no rate for inner step {len(self._table)}: {first_line(error)}"
                ". Make it for as many steps as the inner loop has."
            ) from error
        self._table.append(self._options())
        for before, after in zip(self._table[0], self._table[-1], strict=True):
            for name in before.keys() - self.moved():
                if before[name] != after[name]:
                    raise MetastepError(
                        f"{type(self._scheduler).__name__} changes {name}, which only a function can do here. Write "
                        f"from_torch(optimizer, {name}=lambda meta, step: …)."
                    )

    def _options(self) -> list[dict[str, Any]]:
        return [plain_options(group) for group in self._scheduler.optimizer.param_groups]


@dataclass(frozen=True)
class Scheduled:
    """One option by a schedule, as a function of (meta, step)."""

    schedule: Schedule
    name: str
    index: int | None
    begin: int
    """The count of steps at which the schedule begins."""
    places: Tree
    """The number of each parameter's group, in a tree like φ; () if there is one group."""

    def __call__(self, meta: Tree, step: Any) -> Any:
        del meta
        values = [group[self.name] for group in self.schedule(_whole(step) - self.begin)]
        values = values if self.index is None else [pair[self.index] for pair in values]
        return values[0] if self.places == () else map_tree(lambda i: values[i], self.places)


def scheduled(schedule: Schedule, begin: int, places: Tree) -> dict[str, Scheduled]:
    """Return the options that a schedule changes, each as a function."""
    found = {}
    for name in schedule.moved():
        for index in (0, 1) if name == "betas" else (None,):
            told = name if index is None else f"{name}[{index}]"
            found[told] = Scheduled(schedule, name, index, begin, places)
    return found


def _whole(step: Any) -> int:
    if not isinstance(step, Tensor):
        return int(step)
    try:
        return int(step)
    except RuntimeError as error:  # each task that is mapped has a count of its own
        raise MetastepError(
            "a scheduler of torch.optim needs one count of steps, but each task has its own. Use chunk_size=1, or give "
            "the rate as a function: lr=lambda meta, step: …."
        ) from error


def _require_scheduler(optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    if isinstance(scheduler, ReduceLROnPlateau):
        raise MetastepError(
            "ReduceLROnPlateau looks at a loss, which an inner loop does not give it. Use a scheduler that counts "
            "steps."
        )
    if not isinstance(scheduler, LRScheduler):
        raise MetastepError(
            f"scheduler = {type(scheduler).__name__} must be one of torch.optim.lr_scheduler. Give a schedule of your "
            "own as a function: lr=lambda meta, step: …."
        )
    if scheduler.optimizer is not optimizer:
        raise MetastepError("the scheduler was made for another optimizer. Make it for this one.")
