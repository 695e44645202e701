"""Run the own step of a torch.optim optimizer on one parameter, with tensors and numbers that are given."""

import inspect
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from metastep.core.following import CountedSlots, Following, States
from metastep.core.recorded_numbers import Ledger, Number, UntraceableError
from metastep.core.torch_state import Group, Member, Slots, is_torchs, layout_of, memory_of
from metastep.core.traced_step import example, outside_of_transforms

# Flags that say how the same step is computed.
FLAGS = {"foreach": False, "fused": None, "capturable": False, "differentiable": False}


class OwnStep:
    """An optimizer's own step: a function of a parameter, what the optimizer remembers of it, and its gradient.

    Args:
        kind: The optimizer's class.
        attributes: What an instance has besides groups and state.
        groups: Its parameter groups.
        replaced: The names of options that are inputs.
    """

    def __init__(
        self,
        kind: type[torch.optim.Optimizer],
        attributes: dict[str, Any],
        groups: tuple[Group, ...],
        replaced: Collection[str],
    ) -> None:
        self.kind, self.attributes, self.groups, self.replaced = kind, attributes, groups, replaced
        self._layouts: dict[int, Slots] = {}
        """What is no tensor of a parameter's state, by its group."""

    def __call__(self, ledger: Ledger, member: Member, p: Tensor, memory: Slots, g: Tensor) -> tuple[Tensor, Slots]:
        """Return the parameter and the memory after the step. Nothing that is given is written to."""
        p, following = p.clone(), Following(is_torchs(self.kind))
        following.gradients[id(p)] = g
        states = States(lambda p: CountedSlots(ledger["step"], following))
        if memory:
            for name, value in {**self._layout(ledger, member, p), **memory}.items():
                states[p][name] = value.clone() if name in memory else value
        optimizer = self.clone([self._options(ledger, member) | {"params": [p]}], states)
        with following:
            inspect.unwrap(self.kind.step)(optimizer)
        slots: Slots = states.get(p, {})
        self._note_layout(member, slots)
        return p, memory_of(slots)

    def clone(self, groups: list[dict[str, Any]], state: Any) -> torch.optim.Optimizer:
        """Return an optimizer of this kind with these groups and this state."""
        optimizer: torch.optim.Optimizer = object.__new__(self.kind)
        vars(optimizer).update(self.attributes, param_groups=groups, state=state)
        return optimizer

    def _layout(self, ledger: Ledger, member: Member, p: Tensor) -> Slots:
        """What the state of a parameter holds besides tensors, if need be by a step from nothing"""
        if member.slots:
            return layout_of(member.slots)
        if member.group not in self._layouts:
            with outside_of_transforms():
                self(Ledger(ledger.values), member, example(p), {}, example(p))
        return self._layouts[member.group]

    def _note_layout(self, member: Member, slots: Slots) -> None:
        """Keep what is no tensor of a parameter's state; it must not change"""
        found = layout_of(slots)
        known = layout_of(member.slots) if member.slots else self._layouts.setdefault(member.group, found)
        for name, value in found.items():
            if name != "step" and (isinstance(value, Number) or known.get(name) != value):
                raise UntraceableError(f"its state of a parameter holds '{name}', a number that changes")
        for name, x in memory_of(slots).items():
            if not x.is_floating_point():
                raise UntraceableError(f"its state of a parameter holds '{name}', a tensor of {x.dtype}")

    def _options(self, ledger: Ledger, member: Member) -> dict[str, Any]:
        options = dict(self.groups[member.group].options)
        options |= {name: flag for name, flag in FLAGS.items() if name in options}
        for name in self.replaced:
            option, _, index = name.partition("[")  # "betas[0]" is the first of a pair
            if index:
                pair = list(options[option])
                pair[int(index[:-1])] = ledger[name]
                options[option] = tuple(pair)
            else:
                options[option] = ledger[name]
        return options
