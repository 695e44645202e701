"""The state of transfer training as a tree that a checkpoint can keep, and back; and when it is written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metastep.core.optimizers import State
from metastep.core.trees import map_tree, require_same, tree_leaves
from metastep.errors import MetastepError
from metastep.train.errors import CheckpointError
from metastep.train.record import Record
from metastep.train.transfer.method import TransferState


def to_tree(state: TransferState) -> dict[str, Any]:
    return {"target": _kept(state.target), "buffers": state.buffers, "meta": _kept(state.meta)}


def _kept(state: State) -> dict[str, Any]:
    memory = {str(i): tree for i, tree in enumerate(state.memory)}
    return {"params": state.params, "memory": memory, "step": state.step}


def from_tree(tree: Any, like: TransferState, path: Path) -> TransferState:
    """As `like`, which says on which device and in which layout; `path` is where the tree came from"""
    try:
        found = TransferState(_state(tree["target"]), tree["buffers"], _state(tree["meta"]))
        require_same(like, found, "the state of this run and its checkpoint's")
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{str(path)!r}: is no checkpoint of transfer training ({error}).") from error
    except MetastepError as error:
        raise CheckpointError(f"{str(path)!r}: does not fit the nets of this run: {error}") from error
    return map_tree(_placed, like, found)  # type: ignore[no-any-return]


def _placed(like: Tensor, saved: Tensor) -> Tensor:
    return torch.empty_like(like, dtype=saved.dtype).copy_(saved)


def _state(tree: dict[str, Any]) -> State:
    return State(tree["params"], tuple(tree["memory"].values()), tree["step"])


class Keeper:
    """Writes checkpoints now and then: an epoch of few pictures takes no longer than writing its state.

    The best state so far waits for the next of them on the device. Killed before that, a resume reaches it again.
    """

    def __init__(self, record: Record, every: float) -> None:
        """every: seconds"""
        self._record, self._every = record, every
        self._best: Mapping[str, Any] | None = None

    @property
    def due(self) -> bool:
        return self._record.due(self._every)

    def remember_best(self, tree: Mapping[str, Any]) -> None:
        self._best = map_tree(_copied, tree)  # the next iteration may write over it

    def write(self, step: int, tree: Mapping[str, Any]) -> None:
        self._record.save(step, tree, self._best)
        self._best = None


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def is_finite(tree: Any) -> bool:
    """One answer for all of it, so that a GPU is waited for once"""
    leaves = tree_leaves(tree)
    return bool(torch.stack([leaf.isfinite().all() for leaf in leaves]).all()) if leaves else True
