"""Make steps that differ only in the tensors they hold once in a process, such as the steps of two seeds.

Tracing an iteration of transfer takes seconds, and compiling it takes minutes. Every run of the process waits for it.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metastep.core.trees import Tree, tree_flatten, tree_leaves, tree_unflatten

KEPT = 16  # programs, of some 20 MiB of host memory each


@dataclass(frozen=True)
class Program:
    """Hold a compiled step: run(*leaves of the arguments, *held) returns the leaves of a tree with this spec."""

    run: Callable[..., Sequence[Tensor]]
    held: list[Tensor]
    spec: Any

    def __call__(self, *arguments: Any) -> tuple[Any, Any]:
        with torch.no_grad():
            found = self.run(*tree_leaves(arguments), *self.held)
        return tree_unflatten(list(found), self.spec)  # type: ignore[no-any-return]


class Kin(NamedTuple):
    """Name steps with the same trace. `holds` lists the tensors that each step holds, always in the same order."""

    name: Hashable
    holds: tuple[Tensor, ...]


_MADE: dict[Hashable, tuple[Program, list[int]]] = {}  # each with the indices of its tensors in Kin.holds


def made_once(kin: Kin, way: Hashable, arguments: Tree, make: Callable[[], Program]) -> Program:
    """Return the program of another step of its kin for arguments of the same layout. Otherwise call `make`."""
    key = kin.name, way, layouts((arguments, kin.holds))
    if key in _MADE:
        program, places = _MADE[key]
        return replace(program, held=[kin.holds[place].detach() for place in places])
    program = make()
    place_of = {_memory(tensor): place for place, tensor in enumerate(kin.holds)}
    known = [place_of[_memory(tensor)] for tensor in program.held if _memory(tensor) in place_of]
    if len(known) == len(program.held):  # otherwise it holds a tensor that may differ among its kin
        if len(_MADE) == KEPT:
            del _MADE[next(iter(_MADE))]
        _MADE[key] = program, known
    return program


def layouts(tree: Tree) -> Hashable:
    """Return the structure of a tree, and shape, strides, dtype and device of its leaves."""
    leaves, spec = tree_flatten(tree)
    return spec, tuple((leaf.shape, leaf.stride(), leaf.dtype, leaf.device) for leaf in leaves)


def _memory(tensor: Tensor) -> Hashable:
    return tensor.data_ptr(), tensor.shape, tensor.stride()
