"""Arithmetic on trees of tensors: any nesting of dicts, lists, tuples and NamedTuples."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

# What torch.func and torch.compile flatten their own arguments with; there is no public name for it yet.
from torch.utils._pytree import (
    tree_flatten as tree_flatten,
    tree_flatten_with_path as tree_flatten_with_path,
    tree_leaves as tree_leaves,
    tree_map as tree_map,
    tree_unflatten as tree_unflatten,
)

from metastep.errors import MetastepError

Tree = Any
"""Any nesting of dicts, lists, tuples and NamedTuples with tensors at its leaves."""

__all__ = [
    "Tree", "add", "add_scaled", "dot", "leaves", "map_tree", "norm", "normal_like", "relative_change", "scale",
    "subtract", "zeros_like",
]  # fmt: skip


def leaves(tree: Tree) -> list[Tensor]:
    """Return all tensors of a tree, such as a nested meta, for an optimizer.

    Args:
        tree: Any nesting of dicts, lists, tuples and NamedTuples.

    Returns:
        The tensors themselves, not copies.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> meta = {"params": {"weight": torch.ones(2)}, "rates": torch.tensor(0.1)}
        >>> optimizer = torch.optim.Adam(ms.trees.leaves(meta), lr=1e-3)
    """
    return tree_leaves(tree)


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Return a tree whose leaves are a function of the leaves of other trees.

    Args:
        function: Called with one leaf of each tree.
        tree: The first tree.
        others: More trees with the same structure.

    Returns:
        A tree with the structure of the first.

    Raises:
        ValueError: The trees have different structures.

    Example:
        >>> import metastep as ms
        >>> ms.trees.map_tree(lambda a, b: a + b, {"x": 1, "y": [2]}, {"x": 10, "y": [20]})
        {'x': 11, 'y': [22]}
    """
    if _is_flat(tree) and all(_is_flat(other) and other.keys() == tree.keys() for other in others):
        return {name: function(x, *(other[name] for other in others)) for name, x in tree.items()}
    return tree_map(function, tree, *others)


def _is_flat(tree: Tree) -> bool:
    """Return whether a tree is a dict of tensors, as most are. These take a fraction of the time."""
    return type(tree) is dict and all(isinstance(x, Tensor) for x in tree.values())


def add(a: Tree, b: Tree) -> Tree:
    """Return a + b.

    Args:
        a: A tree of tensors.
        b: One with the same structure.

    Returns:
        The sum, leaf by leaf.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> ms.trees.add({"x": torch.tensor(1.0)}, {"x": torch.tensor(2.0)})
        {'x': tensor(3.)}
    """
    return map_tree(torch.add, a, b)


def subtract(a: Tree, b: Tree) -> Tree:
    """Return a − b.

    Args:
        a: A tree of tensors.
        b: One with the same structure.

    Returns:
        The difference, leaf by leaf.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> ms.trees.subtract({"x": torch.tensor(3.0)}, {"x": torch.tensor(2.0)})
        {'x': tensor(1.)}
    """
    return map_tree(torch.sub, a, b)


def scale(factor: float | Tensor, tree: Tree) -> Tree:
    """Return factor · tree.

    Args:
        factor: A number, or a tensor that broadcasts to every leaf.
        tree: A tree of tensors.

    Returns:
        The product, leaf by leaf.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> ms.trees.scale(0.5, {"x": torch.tensor(3.0)})
        {'x': tensor(1.5000)}
    """
    return map_tree(lambda x: factor * x, tree)


def add_scaled(a: Tree, factor: float | Tensor, b: Tree) -> Tree:
    """Return a + factor · b.

    Args:
        a: A tree of tensors.
        factor: A number, or a tensor that broadcasts to every leaf.
        b: A tree with the structure of `a`.

    Returns:
        The sum, leaf by leaf.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> ms.trees.add_scaled({"x": torch.tensor(1.0)}, 0.5, {"x": torch.tensor(2.0)})
        {'x': tensor(2.)}
    """
    return map_tree(lambda x, y: x + factor * y, a, b)


def dot(a: Tree, b: Tree) -> Tensor:
    """Return the inner product ⟨a, b⟩ over all leaves.

    Args:
        a: A tree of tensors.
        b: One with the same structure.

    Returns:
        A scalar. For complex leaves, its real part.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> print(ms.trees.dot([torch.ones(2), torch.ones(3)], [torch.ones(2), torch.ones(3)]))
        tensor(5.)
    """
    if isinstance(a, Tensor) and a.dim() == 1 and a.is_floating_point():
        return torch.dot(a, b)
    products = [(x.conj() * y).real.sum() for x, y in zip(tree_leaves(a), tree_leaves(b), strict=True)]
    return torch.stack(products).sum() if products else torch.zeros(())


def norm(tree: Tree) -> Tensor:
    """Return the Euclidean norm over all leaves.

    Args:
        tree: A tree of tensors.

    Returns:
        A scalar.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> print(ms.trees.norm([torch.tensor(3.0), torch.tensor(4.0)]))
        tensor(5.)
    """
    return dot(tree, tree).sqrt()


def norm_of(tensors: list[Tensor]) -> Tensor:
    """Return what `norm` returns, in a few operations. vmap does not know them."""
    sizes = torch._foreach_norm(tensors)
    together: Tensor = torch.linalg.vector_norm(torch.stack([size.to(sizes[0].device) for size in sizes]))
    return together


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """Return a / b for lengths, or 0 if both are 0."""
    return a / b.clamp_min(torch.finfo(b.dtype).tiny)


def relative_change(before: Tree, after: Tree) -> Tensor:
    """Return ‖after − before‖ / ‖after‖, or 0 if both are 0.

    Args:
        before: A tree of tensors.
        after: One with the same structure.

    Returns:
        A scalar.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> print(ms.trees.relative_change(torch.tensor([3.0, 0.0]), torch.tensor([3.0, 4.0])))
        tensor(0.8000)
    """
    return ratio(norm(subtract(after, before)), norm(after))


def zeros_like(tree: Tree) -> Tree:
    """Return zeros in the shape of a tree.

    Args:
        tree: A tree of tensors.

    Returns:
        A new tree.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> ms.trees.zeros_like({"x": torch.ones(2)})
        {'x': tensor([0., 0.])}
    """
    return map_tree(torch.zeros_like, tree)


def normal_like(tree: Tree) -> Tree:
    """Return independent standard normal numbers in the shape of a tree.

    Args:
        tree: A tree of tensors. Complex leaves get such numbers in both parts.

    Returns:
        A new tree.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> ms.trees.normal_like({"x": torch.ones(2, 3)})["x"].shape
        torch.Size([2, 3])
    """
    return map_tree(lambda x: 2**0.5 * torch.randn_like(x) if x.is_complex() else torch.randn_like(x), tree)


def doubled(tree: Tree) -> Tree:
    """Return constants in double precision: the norm of a bad estimate may overflow in its own."""
    return map_tree(lambda x: x.detach().to(torch.complex128 if x.is_complex() else torch.float64), tree)


def hollow_like(tree: Tree) -> Tree:
    """Return zeros in the shape of `tree` that take no memory (one number, expanded)."""
    return map_tree(lambda x: x.new_zeros(()).expand(x.shape), tree)


def filled(grads: Tree, params: Tree) -> Tree:
    """Replace missing gradients by zeros: momentum and weight decay still act on what the loss did not use."""
    if not _is_flat(grads) and tree_flatten(grads)[1] == tree_flatten(params)[1]:
        grads = map_tree(lambda g, p: torch.zeros_like(p) if g is None else g, grads, params)
    return alike(grads, params, "gradients")


def alike(tree: Tree, params: Tree, what: str) -> Tree:
    """Return `tree`, and refuse one without the names and shapes of `params` in the same order."""
    require_same(params, tree, f"params and {what}")
    return tree


def split_floats(tree: Tree) -> tuple[list[Tensor], Callable[[list[Tensor]], Tree]]:
    """Return the floating-point tensors of a tree, and a function that puts others in their place."""
    leaves, spec = tree_flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_floating_point()]

    def rebuild(floats: list[Tensor]) -> Tree:
        replaced = dict(zip(places, floats, strict=True))
        return tree_unflatten([replaced.get(i, leaf) for i, leaf in enumerate(leaves)], spec)

    return [leaves[i] for i in places], rebuild


def to_vector(tree: Tree) -> Tensor:
    """Return all leaves as one vector."""
    return torch.cat([leaf.reshape(-1) for leaf in tree_leaves(tree)])


def from_vector(vector: Tensor, like: Tree) -> Tree:
    """Return the leaves of such a vector again, shaped as those of `like`."""
    leaves, spec = tree_flatten(like)
    parts = torch.split(vector, [leaf.numel() for leaf in leaves])
    return tree_unflatten([part.view(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)], spec)


def is_number(x: object) -> bool:
    """Return whether x is an int or a float, and not a bool."""
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def is_zero(x: object) -> bool:
    """Return whether x is the number 0. A tensor or a function may give another."""
    return is_number(x) and x == 0


def shapes(tree: Tree) -> list[tuple[int, ...]]:
    """Return the shape of each leaf."""
    return [tuple(leaf.shape) for leaf in tree_leaves(tree)]


def require_same(a: Tree, b: Tree, what: str) -> None:
    """Refuse two trees that do not agree leaf by leaf; `what` begins the message."""
    if _is_flat(a) and _is_flat(b) and [(n, x.shape) for n, x in a.items()] == [(n, x.shape) for n, x in b.items()]:
        return
    spec_a, spec_b = tree_flatten(a)[1], tree_flatten(b)[1]
    if spec_a != spec_b or shapes(a) != shapes(b):
        found = difference(a, b, "the first", "the second") or "their names are the same, but not the order or the kind"
        raise MetastepError(f"{what} are not alike: {found}. Build both from the same tree.")


def difference(a: Tree, b: Tree, of_a: str, of_b: str) -> str | None:
    """Return in words how names and shapes of two trees differ; `of_a` and `of_b` say whose they are."""
    first, second = _named(a), _named(b)
    only = [(of_a, first.keys() - second.keys()), (of_b, second.keys() - first.keys())]
    told = [f"only in {whose}: {listed(map(repr, sorted(names)))}" for whose, names in only if names]
    unequal = [name for name, shape in first.items() if second.get(name, shape) != shape]
    told += [f"'{name}' is {first[name]} in {of_a} and {second[name]} in {of_b}" for name in unequal[:1]]
    return "; ".join(told) or None


def leaves_by_name(tree: Tree) -> dict[str, Any]:
    """Return the leaves by their paths, such as 'support/0'."""
    leaves = tree_flatten_with_path(tree)[0]
    return {"/".join(str(key).strip("[].'") for key in way) or "the tensor": leaf for way, leaf in leaves}


def _named(tree: Tree) -> dict[str, Any]:
    """Return the shape of each leaf, or its type if it is no tensor, by its path."""
    found = leaves_by_name(tree)
    return {n: tuple(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__ for n, leaf in found.items()}


def listed(names: Iterable[str]) -> str:
    """Return the names, or the first ones of many."""
    known = list(names)
    return ", ".join(known[:3]) + (f" and {len(known) - 3} more" if len(known) > 3 else "")
