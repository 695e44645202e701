"""Arithmetic on trees of tensors: any nesting of dicts, lists, tuples and NamedTuples."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

# What torch.func and torch.compile flatten their own arguments with; there is no public name for it yet.
from torch.utils._pytree import tree_flatten, tree_flatten_with_path, tree_leaves, tree_map, tree_unflatten

from metastep.errors import MetastepError

Tree = Any

__all__ = [
    "Tree", "add", "add_scaled", "alike", "difference", "dot", "filled", "hollow_like", "is_number", "joined",
    "leaves", "map_tree", "norm", "normal_like", "parted", "relative_change", "require_same", "scale", "shapes",
    "split_floats", "subtract", "tree_flatten", "tree_leaves", "tree_unflatten", "zeros_like",
]  # fmt: skip


def leaves(tree: Tree) -> list[Tensor]:
    """All tensors of a tree, such as a nested meta, for an optimizer"""
    return tree_leaves(tree)


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    if _is_flat(tree) and all(_is_flat(other) and other.keys() == tree.keys() for other in others):
        return {name: function(x, *(other[name] for other in others)) for name, x in tree.items()}
    return tree_map(function, tree, *others)


def _is_flat(tree: Tree) -> bool:
    """Most trees are: tensors by name, which are gone through in a fraction of the time that any nesting takes"""
    return type(tree) is dict and all(isinstance(x, Tensor) for x in tree.values())


def add(a: Tree, b: Tree) -> Tree:
    return map_tree(torch.add, a, b)


def subtract(a: Tree, b: Tree) -> Tree:
    return map_tree(torch.sub, a, b)


def scale(factor: float | Tensor, tree: Tree) -> Tree:
    return map_tree(lambda x: factor * x, tree)


def add_scaled(a: Tree, factor: float | Tensor, b: Tree) -> Tree:
    """a + factor · b"""
    return map_tree(lambda x, y: x + factor * y, a, b)


def dot(a: Tree, b: Tree) -> Tensor:
    """⟨a, b⟩ over all leaves together"""
    products = [(x.conj() * y).real.sum() for x, y in zip(tree_leaves(a), tree_leaves(b), strict=True)]
    return torch.stack(products).sum() if products else torch.zeros(())


def norm(tree: Tree) -> Tensor:
    return dot(tree, tree).sqrt()


def relative_change(before: Tree, after: Tree) -> Tensor:
    """‖after − before‖ / ‖after‖, and 0 where both are 0"""
    length = norm(after)
    return norm(subtract(after, before)) / length.clamp_min(torch.finfo(length.dtype).tiny)


def zeros_like(tree: Tree) -> Tree:
    return map_tree(torch.zeros_like, tree)


def normal_like(tree: Tree) -> Tree:
    """Independent standard normal numbers in the shape of `tree`; of a complex one, for both parts"""
    return map_tree(lambda x: 2**0.5 * torch.randn_like(x) if x.is_complex() else torch.randn_like(x), tree)


def hollow_like(tree: Tree) -> Tree:
    """Zeros in the shape of `tree` that take no memory (one number, expanded)"""
    return map_tree(lambda x: x.new_zeros(()).expand(x.shape), tree)


def filled(grads: Tree, params: Tree) -> Tree:
    """Missing gradients (None) are zeros: momentum and weight decay still act on what the loss did not use"""
    if not _is_flat(grads) and tree_flatten(grads)[1] == tree_flatten(params)[1]:
        grads = map_tree(lambda g, p: torch.zeros_like(p) if g is None else g, grads, params)
    return alike(grads, params, "gradients")


def alike(tree: Tree, params: Tree, what: str) -> Tree:
    """`tree`, if it has the names and shapes of `params` in the same order"""
    require_same(params, tree, f"params and {what}")
    return tree


def split_floats(tree: Tree) -> tuple[list[Tensor], Callable[[list[Tensor]], Tree]]:
    """The floating-point tensors of a tree, and how to put others in their place"""
    leaves, spec = tree_flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_floating_point()]

    def rebuild(floats: list[Tensor]) -> Tree:
        replaced = dict(zip(places, floats, strict=True))
        return tree_unflatten([replaced.get(i, leaf) for i, leaf in enumerate(leaves)], spec)

    return [leaves[i] for i in places], rebuild


def joined(tree: Tree) -> Tensor:
    """All leaves as one vector"""
    return torch.cat([leaf.reshape(-1) for leaf in tree_leaves(tree)])


def parted(vector: Tensor, like: Tree) -> Tree:
    """The leaves of a vector again, shaped as those of `like`"""
    leaves, spec = tree_flatten(like)
    parts = torch.split(vector, [leaf.numel() for leaf in leaves])
    return tree_unflatten([part.view(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)], spec)


def is_number(x: object) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def shapes(tree: Tree) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in tree_leaves(tree)]


def require_same(a: Tree, b: Tree, what: str) -> None:
    """Two trees that must agree leaf by leaf; `what` begins the message"""
    if _is_flat(a) and _is_flat(b) and [(n, x.shape) for n, x in a.items()] == [(n, x.shape) for n, x in b.items()]:
        return
    spec_a, spec_b = tree_flatten(a)[1], tree_flatten(b)[1]
    if spec_a != spec_b or shapes(a) != shapes(b):
        found = difference(a, b, "the first", "the second") or "their names are the same, but not the order or the kind"
        raise MetastepError(f"{what} are not alike: {found}. Build both from the same tree.")


def difference(a: Tree, b: Tree, of_a: str, of_b: str) -> str | None:
    """In which names and shapes two trees differ, in words; `of_a` and `of_b` say whose they are"""
    first, second = _named(a), _named(b)
    only = [(of_a, first.keys() - second.keys()), (of_b, second.keys() - first.keys())]
    told = [f"only in {whose}: {_listed(names)}" for whose, names in only if names]
    unequal = [name for name, shape in first.items() if second.get(name, shape) != shape]
    told += [f"'{name}' is {first[name]} in {of_a} and {second[name]} in {of_b}" for name in unequal[:1]]
    return "; ".join(told) or None


def _named(tree: Tree) -> dict[str, Any]:
    """The shape of each leaf (of what is no tensor, its kind), by the way to it: 'support/0'"""
    leaves = tree_flatten_with_path(tree)[0]
    names = ("/".join(str(key).strip("[].'") for key in way) or "itself" for way, _ in leaves)
    looks = (tuple(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__ for _, leaf in leaves)
    return dict(zip(names, looks, strict=True))


def _listed(names: Iterable[str]) -> str:
    """Of many, the first ones"""
    quoted = [f"'{name}'" for name in sorted(names)]
    return ", ".join(quoted[:3]) + (f" and {len(quoted) - 3} more" if len(quoted) > 3 else "")
