"""Sums of two convolutions as one convolution.

What moves the output of a convolution is its moving input and its moving weight, and so it is with its gradients:

    ẏ  = ẋ ∗ w  + x ∗ ẇ        [ẋ, x] ∗ [w, ẇ]      joined where ∗ sums: in the channels of the input,
    dẋ = dẏ ∗ᵀ w + dy ∗ᵀ ẇ     [dẏ, dy] ∗ᵀ [w, ẇ]   in those of the output.

One of twice the depth has one start and end where two had two, and nothing is left to add. Gradients of weights, too,
could be joined, in pictures; but those are what there is most of to copy, and cuDNN is no faster by it. Others cannot
be: a convolution and its derivative share an argument, but which way the derivative goes is known only when the
convolution and all later steps are done.
"""

import operator
from typing import Any, NamedTuple, cast

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from metastep.step.compiler.side_by_side import SIDE_BY_SIDE

aten = torch.ops.aten

LARGEST = 2**23  # numbers to copy: a GPU takes 2 µs for a million, and a smaller sum may save 20
SAVED = 2  # passes over the sum
_CONVOLUTION, _BACKWARD = aten.convolution.default, aten.convolution_backward.default


class _Kind(NamedTuple):
    """What is multiplied, by its places among the arguments, and the dimension of each in which products are summed"""

    places: tuple[int, int]
    dims: tuple[int, int]


_OUTPUT = _Kind((0, 1), (1, 1))  # of (x, w, bias, settings …)
_INPUT_GRADIENT = _Kind((0, 2), (1, 0))  # of (dy, x, w, …, settings …, which)


class _Term(NamedTuple):
    call: Node
    kind: _Kind

    @property
    def factors(self) -> list[Node]:
        return [cast(Node, self.call.args[place]) for place in self.kind.places]

    @property
    def settings(self) -> tuple[Any, ...]:
        """stride, padding, dilation, transposed, output padding, groups"""
        return self.call.args[3:9] if self.kind is _OUTPUT else self.call.args[4:10]

    @property
    def bias(self) -> Any:
        return self.call.args[2] if self.kind is _OUTPUT else None


def merge_sums(graph: Graph) -> None:
    """What the sums no longer read is left behind, dead."""
    for node in [node for node in graph.nodes if node.target is aten.add.Tensor and not node.kwargs]:
        first, second = map(_term, node.args)
        if first and second and _alike(first, second) and _copied(first, second) <= _worth(node):
            with graph.inserting_before(node):
                node.replace_all_uses_with(_merged(graph, first, second))
            graph.erase_node(node)


def _term(node: object) -> _Term | None:
    """A convolution, or the gradient of its input, that only the sum reads"""
    if not isinstance(node, Node) or len(node.users) > 1:
        return None
    if node.target is _CONVOLUTION:
        return _Term(node, _OUTPUT)
    if node.target is operator.getitem and cast(Node, node.args[0]).target is _BACKWARD:
        call, part = cast(tuple[Node, int], node.args)
        return _Term(call, _INPUT_GRADIENT) if part == 0 else None
    return None


def _alike(first: _Term, second: _Term) -> bool:
    transposed, groups = first.settings[3], first.settings[5]
    one_bias = first.bias is None or second.bias is None
    same = (first.kind, first.settings) == (second.kind, second.settings)
    return same and one_bias and not transposed and groups == 1 and _sides(first) == _sides(second)


def _sides(term: _Term) -> list[object]:
    """All about the factors but their lengths where they are joined"""
    values = [factor.meta["val"] for factor in term.factors]
    dims = zip(values, term.kind.dims, strict=True)
    return [(value.dtype, value.shape[:dim], value.shape[dim + 1 :]) for value, dim in dims]


def _worth(node: Node) -> int:
    """Where the sum is large, what it saves is more than a start: one of its terms is neither written nor read"""
    return max(LARGEST, SAVED * int(node.meta["val"].numel()))


def _copied(*terms: _Term) -> int:
    return sum(factor.meta["val"].numel() for term in terms for factor in term.factors)


def _merged(graph: Graph, first: _Term, second: _Term) -> Node:
    arguments = list(first.call.args)
    pairs = zip(first.factors, second.factors, strict=True)
    for place, dim, pair in zip(first.kind.places, first.kind.dims, pairs, strict=True):
        arguments[place] = call(graph, SIDE_BY_SIDE, list(pair), dim)
    if first.kind is _OUTPUT:
        arguments[2] = second.bias if first.bias is None else first.bias
        return call(graph, _CONVOLUTION, *arguments)
    arguments[3], arguments[10] = None, [True, False, False]
    return call(graph, operator.getitem, call(graph, _BACKWARD, *arguments), 0)


def call(graph: Graph, target: Any, *arguments: Any) -> Node:
    """With its shapes, as those before it"""
    node = graph.call_function(target, arguments)
    node.meta["val"] = target(*map_arg(arguments, lambda each: each.meta["val"]))
    return node
