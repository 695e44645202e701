"""An optimizer that sees all parameters as one vector: a few large passes in place of many small ones."""

from typing import NamedTuple

import torch
from torch import Tensor

from metastep.dynamics import SGD, Adam, State
from metastep.trees import Tree, tree_flatten, tree_leaves, tree_unflatten


class Joined(NamedTuple):
    """The same steps as `inner`, whose rates must be one for all parameters."""

    inner: SGD | Adam

    def init(self, params: Tree) -> State:
        return self.inner.init(params)

    def advance(self, state: State, grad: Tree, meta: Tree, steps: int) -> State:
        if not tree_leaves(state.params):
            return State(state.params, state.memory, state.step + steps)
        vectors = State(joined(state.params), tuple(joined(tree) for tree in state.memory), state.step)
        after = self.inner.advance(vectors, joined(grad), meta, steps)
        memory = tuple(parted(vector, state.params) for vector in after.memory)
        return State(parted(after.params, state.params), memory, after.step)


def joined(tree: Tree) -> Tensor:
    return torch.cat([leaf.reshape(-1) for leaf in tree_leaves(tree)])


def parted(vector: Tensor, like: Tree) -> Tree:
    leaves, spec = tree_flatten(like)
    parts = torch.split(vector, [leaf.numel() for leaf in leaves])
    return tree_unflatten([part.view(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)], spec)
