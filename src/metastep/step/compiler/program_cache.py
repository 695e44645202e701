"""Steps that differ only in the tensors they hold, as those of two seeds do, are made once in a process.

Tracing an iteration of transfer takes seconds and compiling it minutes, in which every run of the process waits.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metastep.core.trees import Tree, tree_flatten, tree_leaves, tree_unflatten

KEPT = 16  # programs, of some 20 MiB on the host


@dataclass(frozen=True)
class Program:
    """A step as it was made: run(*leaves of the arguments, *held) gives the leaves of a tree with this spec"""

    run: Callable[..., Sequence[Tensor]]
    held: list[Tensor]
    spec: Any

    def __call__(self, *arguments: Any) -> tuple[Any, Any]:
        with torch.no_grad():
            found = self.run(*tree_leaves(arguments), *self.held)
        return tree_unflatten(list(found), self.spec)  # type: ignore[no-any-return]


class Kin(NamedTuple):
    """Steps of one name have one trace, but for the tensors that each holds; these are told in one order."""

    name: Hashable
    holds: tuple[Tensor, ...]


_MADE: dict[Hashable, tuple[Program, list[int]]] = {}  # with the places of what it holds in Kin.holds


def made_once(kin: Kin, way: Hashable, arguments: Tree, make: Callable[[], Program]) -> Program:
    """What was made for another of its kin, in this way and for arguments laid out like these, or else by `make`"""
    key = kin.name, way, layouts((arguments, kin.holds))
    if key in _MADE:
        program, places = _MADE[key]
        return replace(program, held=[kin.holds[place].detach() for place in places])
    program = make()
    place_of = {_memory(tensor): place for place, tensor in enumerate(kin.holds)}
    known = [place_of[_memory(tensor)] for tensor in program.held if _memory(tensor) in place_of]
    if len(known) == len(program.held):  # or it holds something of which its kin may have another
        if len(_MADE) == KEPT:
            del _MADE[next(iter(_MADE))]
        _MADE[key] = program, known
    return program


def layouts(tree: Tree) -> Hashable:
    leaves, spec = tree_flatten(tree)
    return spec, tuple((leaf.shape, leaf.stride(), leaf.dtype, leaf.device) for leaf in leaves)


def _memory(tensor: Tensor) -> Hashable:
    return tensor.data_ptr(), tensor.shape, tensor.stride()
