"""Which library multiplies two matrices, and in which orientation: a rule of shapes and layouts, for CPUs.

It was fitted to 1,460 products of 5 to 784 rows, columns and inner sizes on one core of an AMD EPYC, in float32. It is
within 3 % of the fastest of the four ways on average, where `mm` alone takes 1.59 times as long. A clock could decide
otherwise in the next process, which would then compile everything again: the decision is a part of the cache's key.
"""

from collections.abc import Callable, Collection
from functools import cache
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten

NARROW = 10  # columns: MKL and oneDNN are several times slower if the result is narrow than if it is flat
LARGE = 1_000_000  # multiplications: below, calling oneDNN costs more than it gains


def is_turned(m: int, n: int, a_by_columns: bool, b_by_columns: bool) -> bool:
    """Return whether (bᵀaᵀ)ᵀ is faster than ab, for a result (m, n)."""
    if m <= NARROW or n <= NARROW:
        return n <= NARROW < m
    return a_by_columns and b_by_columns


def is_large(m: int, k: int, n: int) -> bool:
    """Return whether oneDNN is faster than PyTorch's own choice, for (m, k) times (k, n) in float32."""
    return m * k * n >= LARGE and k > NARROW


def choose_products(graph: GraphModule, known: Collection[Node] = ()) -> None:
    """Rewrite the matrix products of a traced graph as the rule has it.

    Args:
        graph: The graph.
        known: Nodes that are computed once for many calls, which may have any layout.
    """
    for node in list(graph.graph.nodes):
        parts = _factors(node)
        if parts is not None:
            with graph.graph.inserting_before(node):
                new = _rewritten(graph.graph, *parts, known)
            if new is not None:
                node.replace_all_uses_with(new)
                graph.graph.erase_node(node)


def _factors(node: Node) -> tuple[Node, Node, Node | None, bool] | None:
    """Return (a, b, bias, whether it is a batch of one) of a product on a CPU."""
    if node.op != "call_function" or node.kwargs or _value(node).device.type != "cpu":
        return None
    if node.target is aten.mm.default:
        return node.args[0], node.args[1], None, False  # type: ignore[return-value]
    if node.target is aten.addmm.default:
        return node.args[1], node.args[2], node.args[0], False  # type: ignore[return-value]
    if node.target is aten.bmm.default and _value(node).shape[0] == 1:
        return node.args[0], node.args[1], None, True  # type: ignore[return-value]
    return None


def _value(node: Any) -> Any:
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else torch.empty((), device="meta")


def _rewritten(graph: Graph, a: Node, b: Node, bias: Node | None, single: bool, known: Collection[Node]) -> Node | None:
    is_known = [x in known for x in (a, b)]
    if single:
        a, b = _call(graph, aten.squeeze.dim, a, 0), _call(graph, aten.squeeze.dim, b, 0)
    (m, k), n = _value(a).shape, _value(b).shape[1]
    large = is_large(m, k, n) and _value(a).dtype == torch.float32 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    turned = is_turned(m, n, _by_columns(a), _by_columns(b)) and (large or n <= NARROW)
    if bias is not None and not large and not turned:
        return None
    if turned:
        a, b, is_known = _turned(graph, b), _turned(graph, a), is_known[::-1]
    new = _by_onednn(graph, a, b, is_known[1]) if large else _call(graph, aten.mm.default, a, b)
    new = _turned(graph, new) if turned else new
    new = _call(graph, aten.unsqueeze.default, new, 0) if single else new
    return new if bias is None else _call(graph, aten.add.Tensor, new, bias)


def _by_columns(node: Node) -> bool:
    rows, columns = _value(node).stride()
    return bool(rows < columns)


def _by_onednn(graph: Graph, a: Node, b: Node, is_known: bool) -> Node:
    """Both by rows are fastest: a tenth to a third of the time is saved, which copying b at each call would lose."""
    a, b = _by_rows(graph, a), _by_rows(graph, b) if is_known else b
    return _call(graph, onednn_linear(), a, _turned(graph, b))


def _by_rows(graph: Graph, x: Node) -> Node:
    if not _by_columns(x):
        return x
    return _call(graph, aten.clone.default, x, memory_format=torch.contiguous_format)


def _turned(graph: Graph, x: Node) -> Node:
    return _call(graph, aten.permute.default, x, [1, 0])


def _call(graph: Graph, target: Callable[..., Any], *args: Any, **options: Any) -> Node:
    """Add a call with the fake tensor that it gives, by which the next rule knows its shape."""
    node = graph.call_function(target, args, options)
    values = [arg.meta["val"] if isinstance(arg, Node) else arg for arg in args]
    with next(value.fake_mode for value in values if hasattr(value, "fake_mode")):
        node.meta["val"] = target(*values, **options)
    return node


@cache
def onednn_linear() -> Any:
    """Return oneDNN's a @ wᵀ for any layout as an operator; inductor's own would copy both to be contiguous."""
    library: Any = torch.library.Library("metastep", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("linear(Tensor a, Tensor w) -> Tensor")
    library.impl("linear", _linear, "CPU")
    library.impl("linear", lambda a, w: a.new_empty((a.shape[0], w.shape[0])), "Meta")
    _libraries.append(library)
    return torch.ops.metastep.linear.default


_libraries: list[Any] = []  # an operator is there as long as its library is


def _linear(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise.default(a, w, None, "none", [], "")  # type: ignore[no-any-return]
