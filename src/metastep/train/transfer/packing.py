"""An optimizer that sees small parameters as one vector: a few passes in place of many small ones."""

from typing import NamedTuple

from torch import Tensor

from metastep.core.optimizers import InnerOptimizer, State, is_linear
from metastep.core.trees import Tree, from_vector, to_vector, tree_flatten, tree_leaves, tree_unflatten

LARGE = 2**16  # numbers: a pass over so many is worth its start, and copies into a vector and back would cost as much


class Packed(NamedTuple):
    """The same steps as `inner`, whose rates must be one for all parameters."""

    inner: InnerOptimizer

    def init(self, params: Tree) -> State:
        return self.inner.init(params)

    def advance(self, state: State, grad: Tree, meta: Tree, steps: int) -> State:
        if not tree_leaves(state.params):
            return State(state.params, state.memory, state.step + steps)
        packs = State(packed(state.params), tuple(packed(tree) for tree in state.memory), state.step)
        after = self.inner.advance(packs, packed(grad), meta, steps)
        memory = tuple(unpacked(pack, state.params) for pack in after.memory)
        return State(unpacked(after.params, state.params), memory, after.step)

    def is_linear(self, state: State, meta: Tree, steps: int) -> bool:
        return is_linear(self.inner, state, meta, steps)


def packed(tree: Tree) -> list[Tensor]:
    """The large leaves, and all others as one vector"""
    leaves = tree_leaves(tree)
    small = [leaf for leaf in leaves if leaf.numel() < LARGE]
    return [leaf for leaf in leaves if leaf.numel() >= LARGE] + ([to_vector(small)] if small else [])


def unpacked(pack: list[Tensor], like: Tree) -> Tree:
    leaves, spec = tree_flatten(like)
    small = [leaf for leaf in leaves if leaf.numel() < LARGE]
    large, rest = iter(pack), iter(from_vector(pack[-1], small) if small else ())
    return tree_unflatten([next(rest if leaf.numel() < LARGE else large) for leaf in leaves], spec)
