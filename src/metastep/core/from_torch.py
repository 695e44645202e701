"""Make an inner optimizer of any optimizer of torch.optim, with its own state, scheduler and options."""

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import nn
from torch.optim import Optimizer

from metastep.core.entrywise import Entrywise, InnerOptimizer, State
from metastep.core.inner_clipping import Clipped
from metastep.core.rates import Rate
from metastep.core.torch_optimizer import TorchOptimizer, copy_of, require_original
from metastep.core.torch_originals import Continuing, NotOursError, Schedule, ours, parameters_of, scheduled
from metastep.core.torch_state import Group, is_torchs, plain_options
from metastep.core.trees import (
    Tree,
    map_tree,
    shapes,
    tree_flatten,
    tree_flatten_with_path,
    tree_unflatten,
)
from metastep.core.value import Value
from metastep.errors import MetastepError, did_you_mean

_REFUSED = {
    "LBFGS": "evaluates its loss several times in a step. Use ms.SGD(…) with more steps, or ms.IMAML at its solution",
    "SparseAdam": "takes sparse gradients, and inner gradients are dense. Use ms.Adam(…)",
    "Adafactor": "takes the size of φ out of its tensors as a Python number, so the size has no derivative. Use "
    "ms.Adam(…)",
}


def from_torch(
    optimizer: Optimizer, parameters: Any = None, scheduler: Any = None, **overrides: Rate
) -> InnerOptimizer:
    """Return an optimizer of torch.optim, or of a third party, as an inner optimizer.

    It begins with the optimizer's own state, and leaves the optimizer as it is. The original of a registered optimizer
    becomes that one, where the two are equal. The step of any other is traced. A third party's is first compared with
    the original over 8 steps. Parameters of φ that the optimizer does not hold stay as they are.

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
    tree = parameters_of(optimizer, parameters)
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
    if isinstance(inner, Clipped):
        return replace(inner, inner=resolved(inner.inner, module))
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
        """Match parameters by their order, which suffices if all have the same options and shapes agree."""
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

_NOT_COPIED = ("param_groups", "state", "step")


def _traced(optimizer: Optimizer, tree: Tree) -> TorchOptimizer:
    path_of = {id(p): path for path, p in tree_flatten_with_path(tree)[0]}
    groups = [
        Group(plain_options(group), tuple(path_of[id(p)] for p in group["params"] if id(p) in path_of))
        for group in optimizer.param_groups
    ]
    held = [p for group in optimizer.param_groups for p in group["params"] if id(p) in path_of]
    slots = {path_of[id(p)]: copy.deepcopy(dict(optimizer.state[p])) for p in held if p in optimizer.state}
    is_known = is_torchs(type(optimizer))
    # A stranger's may keep its parameters in an attribute, and must not write to them.
    own = vars(optimizer if is_known else copy_of(optimizer))
    attributes = {name: value for name, value in own.items() if name not in _NOT_COPIED}
    sizes = {path_of[id(p)]: p.shape for p in held}
    made = TorchOptimizer(type(optimizer), attributes, tuple(groups), slots, sizes)
    if not is_known:
        require_original(made, optimizer, {id(p) for p in held})
    return made


# ---- options that are replaced


def _flat(overrides: dict[str, Any]) -> dict[str, Any]:
    """Return options with pairs such as betas by names of their own."""
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
