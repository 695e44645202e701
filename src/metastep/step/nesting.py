"""The structure of a tree, read once: leaves and tree of the same structure again, fast for a dict of tensors."""

from typing import Any

from torch import Tensor

from metastep.core.trees import Tree, tree_flatten, tree_unflatten


class Nesting:
    """Take a tree apart, and put leaves together again."""

    def __init__(self, tree: Tree) -> None:
        self._names = list(tree) if type(tree) is dict and all(isinstance(x, Tensor) for x in tree.values()) else None
        self._spec = tree_flatten(tree)[1]

    def leaves(self, tree: Tree) -> list[Any]:
        """Return the leaves of a tree of this structure."""
        if self._names is not None and type(tree) is dict and list(tree) == self._names:
            return list(tree.values())
        leaves, spec = tree_flatten(tree)
        if spec != self._spec:
            raise ValueError(f"a tree of another structure: {spec} instead of {self._spec}")
        return leaves

    def tree(self, leaves: list[Any]) -> Tree:
        """Return the tree with these leaves."""
        if self._names is not None:
            return dict(zip(self._names, leaves, strict=True))
        return tree_unflatten(leaves, self._spec)
