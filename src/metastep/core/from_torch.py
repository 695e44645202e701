"""Between `torch.optim` and inner optimizers, both ways: an inner loop may go on from where a real optimizer stands."""

import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from metastep.core import registry
from metastep.core.entrywise import Entrywise, InnerOptimizer, State, is_linear
from metastep.core.rates import Rate
from metastep.core.torch_optimizer import TorchOptimizer
from metastep.core.torch_schedules import Schedule, scheduled
from metastep.core.torch_state import Group, is_torchs, listed, plain_options
from metastep.core.trees import (
    Tree,
    is_number,
    map_tree,
    require_same,
    shapes,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_unflatten,
)
from metastep.core.value import Value
from metastep.errors import MetastepError, did_you_mean, how_many

_SLOTS: dict[type[Optimizer], tuple[str, ...]] = {  # what torch.optim calls the memory; AdamW is a kind of Adam
    torch.optim.SGD: ("momentum_buffer",),
    torch.optim.Adam: ("exp_avg", "exp_avg_sq"),
    torch.optim.RMSprop: ("square_avg", "momentum_buffer"),
}
_UNSUPPORTED = ("maximize", "amsgrad", "centered")
_REFUSED = {
    "LBFGS": "evaluates its loss several times in a step. Use ms.SGD(…) with more steps, or ms.IMAML at its solution",
    "SparseAdam": "takes sparse gradients, and inner gradients are dense. Use ms.Adam(…)",
    "Adafactor": "takes the size of φ out of its tensors as a Python number, so the size has no derivative. Use "
    "ms.Adam(…)",
}


class NotOursError(MetastepError):
    """Say why a torch.optim optimizer is none of metastep's own."""


def from_torch(
    optimizer: Optimizer, parameters: Any = None, scheduler: Any = None, **overrides: Rate
) -> InnerOptimizer:
    """Return an optimizer of torch.optim, or of a third party, as an inner optimizer.

    It begins with the optimizer's own state, and leaves the optimizer as it is. SGD, Adam, AdamW and RMSprop become
    metastep's own where these are equal. The step of any other is traced. A third party's is first compared with the
    original over 8 steps. Parameters of φ that the optimizer does not hold stay as they are.

    Args:
        optimizer: The optimizer.
        parameters: The module whose parameters it holds, or a tree of them like φ. It may be left out if there is one
            group and no state.
        scheduler: One of torch.optim.lr_scheduler, made for this optimizer. It steps once for each inner step.
        overrides: Options that replace the optimizer's own, such as `lr=lambda meta, step: meta["lr"]`. Each is a
            number, a tensor, a tree or a function of (meta, step).

    Returns:
        An inner optimizer.

    Raises:
        MetastepError: The optimizer cannot be an inner one; the message says why, and what to use.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> net = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.NAdam(net.parameters(), lr=0.01)
        >>> ms.optimizers.from_torch(optimizer, net)
        from_torch(NAdam(lr=0.01))
        >>> ms.optimizers.from_torch(torch.optim.Adam(net.parameters(), lr=0.01), net)
        Adam(lr=0.01)
    """
    _require_optimizer(optimizer)
    tree = _tree_of(optimizer, parameters)
    if tree is None:
        return Unnamed(optimizer, scheduler, overrides)
    try:
        own, state = ours(optimizer, tree)
        made: Any = own if state.step == 0 else Continuing(own, state.memory, state.step)
    except NotOursError:
        made = _traced(optimizer, tree)
    begin = 0 if isinstance(made, Entrywise) else made.begin
    by_schedule, given = _by_schedule(optimizer, scheduler, begin, tree), _flat(overrides)
    if twice := by_schedule.keys() & given.keys():
        raise MetastepError(f"{min(twice)} is given, and the scheduler changes it too. Give one of them.")
    inner: InnerOptimizer = _overridden(made, by_schedule | given, optimizer)
    return inner


def resolved(inner: Any, module: nn.Module | None) -> Any:
    """Return an inner optimizer for what may be one of torch.optim, whose parameters are a module's."""
    if isinstance(inner, Unnamed) and module is not None:
        return inner.named(module)
    return from_torch(inner, module) if isinstance(inner, Optimizer) else inner


@dataclass(frozen=True, eq=False)
class Unnamed(Value):
    """A torch.optim optimizer whose parameters nobody has named yet. A `MetaGradient` of a module names them."""

    optimizer: Optimizer
    scheduler: Any
    overrides: dict[str, Rate]

    @cached_property
    def _known(self) -> dict[Any, InnerOptimizer]:
        return {}

    def __repr__(self) -> str:
        return f"from_torch({type(self.optimizer).__name__}(…))"

    def named(self, parameters: Any) -> InnerOptimizer:
        """Return the inner optimizer for these parameters, a module or a tree like φ."""
        return from_torch(self.optimizer, parameters, self.scheduler, **self.overrides)

    def init(self, params: Tree) -> State:
        return self._for(params).init(params)

    def advance(self, state: State, grad: Tree, meta: Tree, steps: int) -> State:
        return self._for(state.params).advance(state, grad, meta, steps)

    def _for(self, params: Tree) -> InnerOptimizer:
        """By the order of the parameters, which says enough if all have the same options and shapes agree"""
        spec = tree_flatten(params)[1]
        if spec not in self._known:
            held = [p for group in self.optimizer.param_groups for p in group["params"]]
            if len(self.optimizer.param_groups) > 1 or self.optimizer.state or shapes(held) != shapes(params):
                raise MetastepError(
                    f"{type(self.optimizer).__name__} does not say which of its parameters is which of φ. Name them: "
                    "ms.optimizers.from_torch(optimizer, parameters), with the module or a tree like φ of what the "
                    "optimizer holds."
                )
            self._known[spec] = self.named(tree_unflatten(held, spec))
        return self._known[spec]


@dataclass(frozen=True, eq=False, repr=False)
class Continuing(Value):
    """An optimizer of ours that goes on from the memory of a real one."""

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


# ---- as one of ours


def ours(optimizer: Optimizer, parameters: Tree) -> tuple[Any, State]:
    """Return the equal optimizer of ours, and its state for `parameters`, a tree like φ.

    The state is copied, so that nothing is shared.
    """
    kind, groups = _kind(optimizer), _groups(optimizer, parameters)
    for group in groups:
        if wrong := [option for option in _UNSUPPORTED if group.get(option)]:
            raise NotOursError(f"{kind.__name__} with {wrong[0]}=True is none of metastep's own")
    options = [plain_options(group) for group in groups]
    if len({tuple(group.get(flag) for flag in ("nesterov", "decoupled_weight_decay")) for group in options}) > 1:
        raise NotOursError(f"parameter groups of {kind.__name__} differ in a flag")
    is_adamw = options[0].get("decoupled_weight_decay")
    cls = registry.named("optimizer", "adamw" if is_adamw else kind.__name__.lower())
    inner = cls(**{field.name: _option([group[field.name] for group in options], parameters) for field in fields(cls)})
    momenta = [group.get("momentum") for group in options]
    return inner, _state(optimizer, parameters, inner, _SLOTS[kind], [m == 0 for m in momenta])


def _option(values: list[Any], tree: Tree) -> Any:
    """One option of all parameters: a number if they agree, else a tree"""
    if isinstance(values[0], tuple):
        return tuple(_option(list(each), tree) for each in zip(*values, strict=True))
    if len(set(values)) == 1:
        return float(values[0]) if is_number(values[0]) else values[0]
    leaves = iter(values)
    return map_tree(lambda p: next(leaves), tree)


def _state(optimizer: Optimizer, parameters: Tree, inner: Any, slots: tuple[str, ...], momentless: list[bool]) -> State:
    """momentless: parameters that have no memory in SGD, where others have one; here it is there and not used"""
    leaves = tree_leaves(parameters)
    stored = [optimizer.state.get(p, {}) for p in leaves]
    taken = [int(s.get("step", 1 if s.get(slots[0]) is not None else 0)) for s in stored]
    without = momentless if slots == _SLOTS[torch.optim.SGD] else [False] * len(leaves)
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
        optimizer: An SGD, Adam, AdamW or RMSprop of torch.optim, or the kind that the state was made with.
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
    tree = _tree_of(optimizer, parameters)
    require_same(tree, state.params, "parameters and the state's params")
    for i, (p, value) in enumerate(zip(tree_leaves(tree), tree_leaves(state.params), strict=True)):
        p.copy_(value)
        optimizer.state[p].update(_slots_of(state, optimizer, i))


def _slots_of(state: State, optimizer: Optimizer, i: int) -> dict[str, Any]:
    """The state of one parameter, as torch.optim names it"""
    if isinstance(state.memory, list):
        raise MetastepError(
            f"a state of {type(optimizer).__name__} that was traced cannot be written back, only one of SGD, Adam, "
            "AdamW and RMSprop. Copy φ from state.params, and the memory from state.memory."
        )
    slots = _SLOTS[_kind(optimizer)]
    own = {slot: tree_leaves(tree)[i].detach().clone() for slot, tree in zip(slots, state.memory, strict=False)}
    return own if slots[0] == "momentum_buffer" else own | {"step": torch.tensor(float(state.step))}


def _kind(optimizer: Optimizer) -> type[Optimizer]:
    for kind in _SLOTS:
        if isinstance(optimizer, kind) and is_torchs(type(optimizer)):  # not a subclass with steps of its own
            return kind
    raise NotOursError(
        f"{type(optimizer).__name__} is none of metastep's own, which are SGD, Adam, AdamW and RMSprop of torch.optim"
    )


def _require_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, Optimizer):
        raise MetastepError(
            f"{type(optimizer).__name__} is not an optimizer of torch.optim. Make one of the parameters of your "
            "module, such as torch.optim.NAdam(net.parameters(), lr=0.01)."
        )
    name = type(optimizer).__name__
    if is_torchs(type(optimizer)) and name in _REFUSED:
        raise MetastepError(f"{name} cannot be an inner optimizer: it {_REFUSED[name]}.")
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise MetastepError(
            f"{name} has hooks on its steps, which a trace would leave out. Remove them; to clip gradients, use "
            "ms.optimizers.clipped(…)."
        )


def _tree_of(optimizer: Optimizer, parameters: Any) -> Tree:
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


def _groups(optimizer: Optimizer, tree: Tree) -> list[dict[str, Any]]:
    """The group of each parameter"""
    of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    named = tree_flatten_with_path(tree)[0]
    if missing := [path for path, p in named if id(p) not in of]:
        raise NotOursError(f"the optimizer does not hold {listed(missing[:1])}")
    return [of[id(p)] for _, p in named]


def _by_schedule(optimizer: Optimizer, scheduler: Any, begin: int, tree: Tree) -> dict[str, Any]:
    if scheduler is None:
        return {}
    return dict(scheduled(Schedule(optimizer, scheduler), begin, _places(optimizer, tree)))


def _places(optimizer: Optimizer, tree: Tree) -> Tree:
    """The number of each parameter's group, as a tree; () if there is one group"""
    if len(optimizer.param_groups) == 1:
        return ()
    of = {id(p): i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
    return map_tree(lambda p: of.get(id(p), 0), tree)


# ---- as a trace

_NOT_COPIED = ("param_groups", "state", "step", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def _traced(optimizer: Optimizer, tree: Tree) -> TorchOptimizer:
    path_of = {id(p): path for path, p in tree_flatten_with_path(tree)[0]}
    groups = [
        Group(plain_options(group), tuple(path_of[id(p)] for p in group["params"] if id(p) in path_of))
        for group in optimizer.param_groups
    ]
    held = [p for group in optimizer.param_groups for p in group["params"] if id(p) in path_of]
    slots = {path_of[id(p)]: copy.deepcopy(dict(optimizer.state[p])) for p in held if p in optimizer.state}
    own = {name: value for name, value in vars(optimizer).items() if name not in _NOT_COPIED}
    # A stranger's may keep its parameters in an attribute, and must not write to them.
    attributes = own if is_torchs(type(optimizer)) else copy.deepcopy(own)
    return TorchOptimizer(type(optimizer), attributes, tuple(groups), slots)


# ---- options that are replaced


def _flat(overrides: dict[str, Any]) -> dict[str, Any]:
    """Of pairs such as betas, each by its own name"""
    pairs = {f"{n}[{i}]": x for n, pair in overrides.items() if isinstance(pair, tuple) for i, x in enumerate(pair)}
    return {name: x for name, x in overrides.items() if not isinstance(x, tuple)} | pairs


def _overridden(made: Any, given: dict[str, Any], optimizer: Optimizer) -> Any:
    if isinstance(made, Continuing):
        return replace(made, inner=_overridden(made.inner, given, optimizer))
    known = made.numbers if isinstance(made, TorchOptimizer) else _numbers(made)
    for name in given:
        if name not in known:
            raise MetastepError(
                f"{type(optimizer).__name__} has no number {name!r} that could be replaced.{did_you_mean(name, known)} "
                f"It has {', '.join(known)}."
            )
    if isinstance(made, TorchOptimizer):
        return made.with_options(given)
    values = _numbers(made) | given
    pairs = {"betas": (values["betas[0]"], values["betas[1]"])} if "betas[0]" in values else {}
    return replace(made, **{name: x for name, x in values.items() if "[" not in name}, **pairs)


def _numbers(inner: Any) -> dict[str, Any]:
    """The numbers of an optimizer of ours, by the names of its options"""
    return {name.partition(": ")[2]: rate for name, rate, _ in inner.rates}
