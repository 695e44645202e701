"""Schedulers of torch.optim as functions of (meta, step)."""

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from metastep.core.torch_state import plain_options
from metastep.core.trees import Tree, map_tree
from metastep.errors import MetastepError, first_line

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
