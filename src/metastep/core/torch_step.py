"""Run the own step of a torch.optim optimizer on tensors that are given."""

import inspect
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from metastep.core.following import CountedSlots, Following, States
from metastep.core.recorded_numbers import Ledger, Number, UntraceableError
from metastep.core.torch_state import Group, Member, Slots, count_of, is_torchs, layout_of, memory_of
from metastep.core.traced_step import example, outside_of_transforms

# Flags that say how the same step is computed.
FLAGS = {"foreach": False, "fused": None, "capturable": False, "differentiable": False}


class OwnStep:
    """An optimizer's own step: a function of φ, the optimizer's memory and the gradients.

    Args:
        kind: The optimizer's class.
        attributes: What an instance has besides groups and state.
        groups: Its parameter groups.
        replaced: The names of options that are inputs.
        begin: How many steps the optimizer has taken before.
    """

    def __init__(
        self,
        kind: type[torch.optim.Optimizer],
        attributes: dict[str, Any],
        groups: tuple[Group, ...],
        replaced: Collection[str],
        begin: int,
    ) -> None:
        self.kind, self.attributes, self.groups, self.replaced, self.begin = kind, attributes, groups, replaced, begin
        self.layouts: dict[int, Slots] = {}
        """What is no tensor of each parameter's state, by its place among the leaves of φ."""

    def __call__(
        self, ledger: Ledger, members: list[Member], params: list[Tensor], memory: list[Slots], grads: list[Tensor]
    ) -> tuple[list[Tensor], list[Slots]]:
        """Return φ and the memory after the step. Nothing that is given is written to."""
        following, owners = Following(is_torchs(self.kind)), dict[int, Member]()
        params = [p.clone() for p in params]
        for p, g, member in zip(params, grads, members, strict=True):
            following.gradients[id(p)], owners[id(p)] = g, member
        states = States(lambda p: CountedSlots(self._count(ledger, owners[id(p)]), following))
        for member, p, slots in zip(members, params, memory, strict=True):
            if slots:
                known = self.layouts.get(member.leaf, layout_of(member.slots))
                for name, value in {**known, **{name: x.clone() for name, x in slots.items()}}.items():
                    states[p][name] = value
        optimizer = self.clone(self._groups(ledger, members, params), states)
        with following:
            inspect.unwrap(self.kind.step)(optimizer)
        for member, p in zip(members, params, strict=True):
            self._note_layout(member, states.get(p, {}))
        return params, [memory_of(states.get(p, {})) for p in params]

    def learn_layouts(self, ledger: Ledger, members: list[Member], params: list[Tensor]) -> None:
        """Take a step from nothing, to see what the optimizer's state of a parameter holds besides tensors."""
        if any(member.leaf not in self.layouts for member in members):
            with outside_of_transforms():
                like = [example(p) for p in params]
                self(ledger, members, like, [memory_of(member.slots) for member in members], like)

    def clone(self, groups: list[dict[str, Any]], state: Any) -> torch.optim.Optimizer:
        """Return an optimizer of this kind with these groups and this state."""
        optimizer: torch.optim.Optimizer = object.__new__(self.kind)
        vars(optimizer).update(self.attributes, param_groups=groups, state=state)
        return optimizer

    def _count(self, ledger: Ledger, member: Member) -> Any:
        """How many steps a parameter has seen: those of all, less those without a gradient"""
        own, behind = f"step {member.leaf}", self.begin - count_of(member.slots)
        count = ledger[own if own in ledger.values else "step"]
        return count - behind if behind else count

    def _note_layout(self, member: Member, slots: Slots) -> None:
        """Keep what is no tensor of a parameter's state; it must not change"""
        found = layout_of(slots)
        layout = self.layouts.setdefault(member.leaf, found)
        for name, value in found.items():
            if name != "step" and (isinstance(value, Number) or layout.get(name) != value):
                raise UntraceableError(f"its state of a parameter holds '{name}', a number that changes")
        for name, x in memory_of(slots).items():
            if not x.is_floating_point():
                raise UntraceableError(f"its state of a parameter holds '{name}', a tensor of {x.dtype}")

    def _groups(self, ledger: Ledger, members: list[Member], params: list[Tensor]) -> list[dict[str, Any]]:
        """One group for each parameter if an option is a tree, else the optimizer's own"""
        apart = any(name not in ledger.values for name in self.replaced)
        groups: dict[Any, dict[str, Any]] = {}
        for member, p in zip(members, params, strict=True):
            key = (member.group, member.leaf) if apart else member.group
            if key not in groups:
                groups[key] = self._options(ledger, member) | {"params": []}
            groups[key]["params"].append(p)
        return list(groups.values())

    def _options(self, ledger: Ledger, member: Member) -> dict[str, Any]:
        options = dict(self.groups[member.group].options)
        options |= {name: flag for name, flag in FLAGS.items() if name in options}
        for name in self.replaced:
            number = ledger[name if name in ledger.values else f"{name} {member.leaf}"]
            option, _, index = name.partition("[")  # "betas[0]" is the first of a pair
            if index:
                pair = list(options[option])
                pair[int(index[:-1])] = number
                options[option] = tuple(pair)
            else:
                options[option] = number
        return options
