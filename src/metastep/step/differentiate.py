"""Derivatives of functions of two lists of tensors, φ and θ, whose graphs stay until they are used.

`Autograd` is for calls that nobody transforms, `Functional` for calls inside of vmap. Both run with grad mode off and
switch it on where a graph is built.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from metastep.core.derivatives import Graph, followed
from metastep.core.guards import with_constants
from metastep.core.trees import Tree, map_tree, tree_flatten, tree_unflatten

# ---- the structure of a tree, read once: leaves and tree of the same structure again, fast for a dict of tensors


class Nesting:
    """Take a tree apart, and put leaves together again."""

    def __init__(self, tree: Tree) -> None:
        self._names = list(tree) if type(tree) is dict and all(isinstance(x, Tensor) for x in tree.values()) else None
        self._spec: Any = tree_flatten(tree)[1] if self._names is None else None

    def leaves(self, tree: Tree) -> list[Any]:
        """Return the leaves of a tree of this structure."""
        if self._names is not None and type(tree) is dict and list(tree) == self._names:
            return list(tree.values())
        leaves, spec = tree_flatten(tree)
        if spec != self._spec:
            raise ValueError(f"a tree of another structure: {spec} instead of {self._spec or self._names}")
        return leaves

    def tree(self, leaves: list[Any]) -> Tree:
        """Return the tree with these leaves."""
        if self._names is not None:
            return dict(zip(self._names, leaves, strict=True))
        return tree_unflatten(leaves, self._spec)


Tensors = list[Tensor]
Known = list[Tensor | None]  # None is zero
Loss = Callable[[Tensors, Tensors], Tensor]


class Pull(Protocol):
    """Pull cotangents of results back to φ and θ."""

    def __call__(
        self,
        along: Sequence[Tensor | None],
        keep: bool = False,
        onto: Sequence[Tensor | None] = (),
        to_meta: bool = False,
    ) -> tuple[Known, Known]:
        """Return what reaches φ and θ.

        Args:
            along: The cotangents.
            keep: The graph is needed again, and what reaches θ may be left out.
            to_meta: What reaches φ may be left out.
            onto: A sum to which what reaches θ is added, term by term: in whatever parts a function is pulled back, the
                sum has the same bits. vmap knows no such sum.
        """


class Autograd:
    """Differentiate by plain autograd."""

    mapped = False

    def __init__(self, first: bool = False) -> None:
        """first: write into nobody's tensors."""
        self.first = first

    def watched(self, tensors: Sequence[Tensor]) -> Tensors:
        """Return the same values as leaves of new graphs."""
        if self.first:
            return [x.detach().clone().requires_grad_() for x in tensors]
        return [x.detach().requires_grad_() for x in tensors]

    def gradient(
        self, loss: Loss, params: Tensors, meta: Tensors, laid: Callable[[Tensors], Tensors] = list
    ) -> tuple[Tensors, Pull]:
        """Return ∂L/∂φ, laid out in some way, and what multiplies a direction by ∂²L/∂φ² and ∂²L/∂θ∂φ."""
        leaves = self.watched(params)
        with followed() as graph:
            found = _grad(graph, [loss(leaves, meta)], leaves, [None], create_graph=True)
            results = laid(_filled(found, params))
        return results, _puller(graph, results, leaves, meta)

    def step(self, loss: Loss, params: Tensors, meta: Tensors) -> Tensors:
        """Return ∂L/∂φ with its graph, which continues that of φ."""
        with followed() as graph:
            value = loss(params, meta)
            found = _grad(graph, [value], params, [None], create_graph=True)
        return _filled(found, params)

    def slope(self, loss: Loss, params: Tensors, meta: Tensors) -> Tensors:
        """Return ∂L/∂φ alone."""
        leaves = self.watched(params)
        with followed() as graph:
            found = _grad(graph, [loss(leaves, meta)], leaves, [None])
        return _filled(found, params)

    def outer(self, loss: Callable[..., Any], params: Tensors, meta: Tensors) -> tuple[Any, Tensors, Known]:
        """Return (loss, metrics), ∂L/∂φ and ∂L/∂θ."""
        leaves = self.watched(params)
        with followed() as graph:
            value, metrics = loss(leaves, meta)
            found = _grad(graph, [value], [*leaves, *meta], [None])
        told = value.detach(), map_tree(torch.Tensor.detach, metrics)
        return told, _filled(found[: len(leaves)], params), found[len(leaves) :]

    def vjp(
        self, function: Callable[[Tensors, Tensors], Tensors], params: Tensors, meta: Tensors
    ) -> tuple[Tensors, Pull]:
        """Return function(φ, θ), and what pulls its cotangents back."""
        leaves = self.watched(params)
        with followed() as graph:
            results = function(leaves, meta)
        return [x.detach() for x in results], _puller(graph, results, leaves, meta)


class Functional:
    """Differentiate by torch.func, as vmap needs it."""

    mapped, first = True, False

    def watched(self, tensors: Sequence[Tensor]) -> Tensors:
        return list(tensors)

    def gradient(
        self, loss: Loss, params: Tensors, meta: Tensors, laid: Callable[[Tensors], Tensors] = list
    ) -> tuple[Tensors, Pull]:
        slope = torch.func.grad(with_constants(loss))
        return self.vjp(lambda params, meta: laid(slope(params, meta)), params, meta)

    def slope(self, loss: Loss, params: Tensors, meta: Tensors) -> Tensors:
        return torch.func.grad(loss)(params, meta)  # type: ignore[no-any-return]

    def outer(self, loss: Callable[..., Any], params: Tensors, meta: Tensors) -> tuple[Any, Tensors, Known]:
        (by_params, by_meta), told = torch.func.grad_and_value(loss, (0, 1), has_aux=True)(params, meta)
        return told, by_params, by_meta

    def vjp(
        self, function: Callable[[Tensors, Tensors], Tensors], params: Tensors, meta: Tensors
    ) -> tuple[Tensors, Pull]:
        results, pull = torch.func.vjp(function, params, meta)[:2]

        def pull_back(
            along: Sequence[Tensor | None],
            keep: bool = False,
            onto: Sequence[Tensor | None] = (),
            to_meta: bool = False,
        ) -> tuple[Known, Known]:
            return pull(_filled(along, results), retain_graph=keep)  # type: ignore[no-any-return]

        return results, pull_back


def _grad(graph: Graph, values: Sequence[Any], at: Tensors, along: Sequence[Any], **options: bool) -> Known:
    """Σ along · ∂value/∂at, with φ in place for modules that run again in their backward"""
    if not values or not at or not any(isinstance(v, GradientEdge) or v.requires_grad for v in values):
        return [None] * len(at)
    with graph.in_place():
        return list(torch.autograd.grad(values, at, along, allow_unused=True, **options))


def _puller(graph: Graph, results: Sequence[Tensor | None], leaves: Tensors, meta: Tensors) -> Pull:
    followed = [(i, x) for i, x in enumerate(results) if x is not None and x.requires_grad]
    own = {id(x): place for place, x in enumerate(meta)}
    same = [(i, own[id(x)]) for i, x in followed if id(x) in own]  # as where φ starts from θ itself
    # Edges, not tensors: the values of the results are not needed for the way back.
    reached = [(i, get_gradient_edge(x)) for i, x in followed if id(x) not in own]
    at, size = [*leaves, *meta], len(leaves)

    def pull(
        along: Sequence[Tensor | None], keep: bool = False, onto: Sequence[Tensor | None] = (), to_meta: bool = False
    ) -> tuple[Known, Known]:
        pairs: list[tuple[Any, Any]] = [(x, along[i]) for i, x in reached if along[i] is not None]
        with torch.enable_grad():  # the last nodes that were made come first in a backward
            pairs += [(x.view_as(x), total) for x, total in zip(meta, onto, strict=False) if total is not None]
        asked = leaves if keep else meta if to_meta else at
        found = _grad(graph, [x for x, _ in pairs], asked, [d for _, d in pairs], retain_graph=keep)
        by_params, by_meta = ([], found) if to_meta else (found[:size], found[size:])
        for i, place in () if keep else same:
            by_meta[place] = _sum(by_meta[place], along[i])
        return by_params, by_meta

    return pull


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _filled(known: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensors:
    return [torch.zeros_like(x) if k is None else k for k, x in zip(known, like, strict=True)]
