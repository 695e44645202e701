"""Between `torch.optim` and dynamics, both ways: an inner loop may go on from where a real optimizer stands."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from metastep.core.optimizers import SGD, Adam, AdamW, RMSprop, State
from metastep.core.trees import require_same
from metastep.errors import MetastepError, how_many

Named = Mapping[str, Tensor]

_SLOTS: dict[type[Optimizer], tuple[str, ...]] = {  # what torch.optim calls the memory; AdamW is a kind of Adam
    torch.optim.SGD: ("momentum_buffer",),
    torch.optim.Adam: ("exp_avg", "exp_avg_sq"),
    torch.optim.RMSprop: ("square_avg", "momentum_buffer"),
}
_UNSUPPORTED = ("maximize", "amsgrad", "centered")


def from_optimizer(optimizer: Optimizer, parameters: Named) -> tuple[SGD | Adam | RMSprop, State]:
    """The dynamics of a `torch.optim` optimizer, and its state for `parameters` (copied, so that nothing is shared)."""
    kind, groups = _kind(optimizer), _groups(optimizer, parameters)
    for name, group in groups.items():
        if wrong := [option for option in _UNSUPPORTED if group.get(option)]:
            raise MetastepError(
                f"{kind.__name__} with {wrong[0]}=True (parameter '{name}') has no dynamics: turn it off."
            )

    def rate(option: str) -> Any:
        values = {name: float(group[option]) for name, group in groups.items()}
        return next(iter(values.values())) if len(set(values.values())) == 1 else values

    def common(option: str) -> Any:
        if len({group[option] for group in groups.values()}) > 1:
            raise MetastepError(f"parameter groups differ in {option}, which must be one for all: {kind.__name__}.")
        return next(iter(groups.values()))[option]

    builders: dict[type[Optimizer], Callable[[], SGD | Adam | RMSprop]] = {
        torch.optim.SGD: lambda: SGD(
            rate("lr"), rate("momentum"), common("dampening"), common("nesterov"), rate("weight_decay")
        ),
        torch.optim.Adam: lambda: (AdamW if common("decoupled_weight_decay") else Adam)(
            rate("lr"), common("betas"), common("eps"), rate("weight_decay")
        ),
        torch.optim.RMSprop: lambda: RMSprop(
            rate("lr"), common("alpha"), common("eps"), rate("weight_decay"), common("momentum")
        ),
    }
    dynamics = builders[kind]()
    without = [name for name, group in groups.items() if kind is torch.optim.SGD and group["momentum"] == 0]
    return dynamics, _state(optimizer, parameters, dynamics, _SLOTS[kind], without)


def _state(
    optimizer: Optimizer, parameters: Named, dynamics: SGD | Adam | RMSprop, slots: tuple[str, ...], without: list[str]
) -> State:
    """without: parameters that have no memory in torch.optim, where others have one; here it is there and not used"""
    stored = {name: optimizer.state.get(p, {}) for name, p in parameters.items()}
    taken = {name: int(s.get("step", 1 if s.get(slots[0]) is not None else 0)) for name, s in stored.items()}
    steps = {name: taken[name] for name in taken if name not in without} or taken
    if len(set(steps.values())) > 1:
        fewest, most = min(steps, key=lambda n: steps[n]), max(steps, key=lambda n: steps[n])
        raise MetastepError(
            f"'{fewest}' has taken {how_many(steps[fewest], 'step')} and '{most}' {steps[most]}, but there is one step "
            "count. Missing gradients must be zeros, not None: fill them before step()."
        )
    params = {name: p.detach().clone() for name, p in parameters.items()}
    fresh = dynamics.init(params)
    step = next(iter(steps.values()))
    if step == 0:
        return fresh
    stored |= {name: {slots[0]: torch.zeros_like(parameters[name])} for name in without if len(without) < len(stored)}
    kept = [slot for slot in slots if all(s.get(slot) is not None for s in stored.values())]
    memory = tuple({name: s[slot].detach().clone() for name, s in stored.items()} for slot in kept)
    return State(params, memory, step)


@torch.no_grad()
def into_optimizer(state: State, optimizer: Optimizer, parameters: Named) -> None:
    """Write a state back: φ into `parameters`, memory and step count into the optimizer's own state."""
    slots = _SLOTS[_kind(optimizer)]
    _groups(optimizer, parameters)
    require_same(dict(parameters), state.params, "parameters and the state's params")
    for name, p in parameters.items():
        p.copy_(state.params[name])
        stored = optimizer.state[p]
        for slot, tree in zip(slots, state.memory, strict=False):
            stored[slot] = tree[name].detach().clone()
        if slots[0] != "momentum_buffer":
            stored["step"] = torch.tensor(float(state.step))


def _kind(optimizer: Optimizer) -> type[Optimizer]:
    own = not inspect.unwrap(type(optimizer).step).__module__.startswith("torch.optim.")  # a subclass with other steps
    for kind in _SLOTS:
        if isinstance(optimizer, kind) and not own:
            return kind
    raise MetastepError(
        f"{type(optimizer).__name__} has no dynamics here, only SGD, Adam, AdamW and RMSprop of torch.optim. "
        "Write its update as a function and wrap it in metastep.StepFunction."
    )


def _groups(optimizer: Optimizer, parameters: Named) -> dict[str, dict[str, Any]]:
    if not isinstance(parameters, Mapping):
        raise MetastepError(
            f"parameters is a {type(parameters).__name__}: they go by name, as in dict(module.named_parameters())."
        )
    by_id = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    if missing := [name for name, p in parameters.items() if id(p) not in by_id]:
        raise MetastepError(f"the optimizer does not hold '{missing[0]}': give it the same parameters.")
    return {name: by_id[id(p)] for name, p in parameters.items()}
