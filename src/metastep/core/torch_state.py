"""What torch.optim keeps of its parameters and of their groups: tensors, counts and options."""

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metastep.core.options import Bound, require_number

Slots = dict[str, Any]  # the state of one parameter

MISSED = "missed"  # an entry of ours in a parameter's memory: how many steps gave it no gradient


class Group(NamedTuple):
    """A parameter group: its options, and the paths of its parameters in φ."""

    options: dict[str, Any]
    paths: tuple[Any, ...]


class Member(NamedTuple):
    """A parameter of φ: its place among the leaves, its group, and the state that the optimizer has of it."""

    leaf: int
    group: int
    slots: Slots
    behind: int
    """How many steps it has missed of those that the optimizer has taken."""

    @property
    def constants(self) -> str:
        """Return what the optimizer's state of it holds besides tensors and its count."""
        return str({name: x for name, x in layout_of(self.slots).items() if name != "step"}) if self.slots else ""


def is_torchs(kind: type[torch.optim.Optimizer]) -> bool:
    """Return whether torch.optim's own code makes the steps. A subclass may have other defaults, but no other code."""
    own: Any = next(each for each in kind.__mro__ if f"{each.__module__}.".startswith("torch.optim."))
    if own is torch.optim.Optimizer or inspect.unwrap(kind.step) is not inspect.unwrap(own.step):
        return False
    added = {name for each in kind.__mro__[: kind.__mro__.index(own)] for name in vars(each)} - {"step"}
    return not any(hasattr(own, name) for name in added if not name.startswith("__"))


def plain_options(group: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a parameter group, with numbers in the place of tensors."""
    options = {name: value for name, value in group.items() if name not in ("params", "param_names")}
    for name, value in options.items():
        if isinstance(value, Tensor):
            require_number(value, Bound(), name)
            options[name] = value.item()
    return options


def count_of(slots: Slots) -> int:
    """Return how many steps a parameter has seen."""
    return int(slots.get("step", 0))


def memory_of(slots: Slots) -> dict[str, Tensor]:
    """Return the tensors of a parameter's state."""
    return {name: x for name, x in slots.items() if isinstance(x, Tensor) and name != "step"}


def layout_of(slots: Slots) -> Slots:
    """Return the rest of a parameter's state, with its count of steps."""
    return {name: x for name, x in slots.items() if not isinstance(x, Tensor) or name == "step"}


def without_missed(memory: Slots) -> Slots:
    """Return what the optimizer itself knows of a parameter's memory."""
    return {name: x for name, x in memory.items() if name != MISSED}


def with_missed(memory: Slots, p: Tensor, steps: int) -> Slots:
    """Count steps that gave a parameter no gradient."""
    missed = memory.get(MISSED, torch.zeros((), dtype=torch.float64, device=p.device))
    return memory | {MISSED: missed + steps}


def listed(paths: Any) -> str:
    """Return paths of parameters as they are named, or the first of many."""
    names = [f"'{''.join(map(str, path)).strip('[].').strip(chr(39))}'" for path in paths]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
