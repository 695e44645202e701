"""An optimizer that sees all parameters as one vector: a few large passes in place of many small ones."""

from typing import NamedTuple

from metastep.dynamics import SGD, Adam, State
from metastep.trees import Tree, joined, parted, tree_leaves


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
