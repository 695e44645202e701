"""Remove repeated and useless operators from a traced step.

Derivatives of derivatives compute the same values again: a second-order product differentiates passes that the step of
the window has already made. The trace contains both, behind aliases and additions of zero. Here equal nodes become one,
and products with zeros become zeros. 0 · x counts as 0 for x = ∞ too.

The number of convolutions that remain is minimal. Each layer of the target needs three for a gradient (y, dx, dw), six
for a second-order product (two each for ẏ, dẋ, dẇ) and two for a mixed part (ẏ); the pictures have no derivatives. For
ResNet-32 to VGG-9 at T = 2, Multi-step keeps 115 of 138 forward and 109 of 124 backward. With merged sums
(`merging.py`), a product needs as many as a gradient.
"""

import operator
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

from metastep.core.trees import tree_leaves
from metastep.errors import MetastepError
from metastep.step.compiler.joining import join_at_once, keep_whole
from metastep.step.compiler.merging import call, merge_sums
from metastep.step.compiler.side_by_side import SIDE_BY_SIDE

aten = torch.ops.aten

_COPIES = (
    aten.alias, aten.detach, aten.reshape, aten.expand, aten.clone, aten._to_copy, aten.lift_fresh_copy,
)  # fmt: skip
_CONVOLUTIONS = (aten.convolution, aten.convolution_backward)
_JOINS = (aten.cat.default, SIDE_BY_SIDE)
_SUMS = (aten.add.Tensor, aten.sub.Tensor)
_MADE_OF_ZEROS = (
    aten.zeros, aten.zeros_like, aten.new_zeros, aten._efficientzerotensor, aten._new_zeros_with_same_feature_meta,
)  # fmt: skip
# _LINEAR: zero if all tensor arguments are zero. _BILINEAR: zero if any is.
_LINEAR = (
    *_COPIES, aten.add, aten.sub, aten.neg, aten.cat, aten.stack, aten.sum, aten.mean, aten.slice, aten.select,
    aten.permute, aten.t, aten.transpose, aten.unsqueeze, aten.squeeze, aten.select_backward, aten.slice_backward,
    aten.split_with_sizes,
)  # fmt: skip
_BILINEAR = (aten.mul, aten.mm)


def simplified(module: GraphModule) -> GraphModule:
    """Simplify a module in place and return it. The module must not write to its inputs."""
    graph = module.graph
    merge_equal(graph)
    merge_sums(graph)
    _ask_before_relu(graph)
    graph.eliminate_dead_code()
    _leave_out_gradients(graph)
    _lay_out(graph)
    join_at_once(graph)
    graph.eliminate_dead_code()
    keep_whole(graph)
    module.recompile()
    return module


def merge_equal(graph: Graph) -> None:
    """Merge equal nodes, except those that share memory with a node that is written to."""
    graph.eliminate_dead_code()
    kept = _near_writes(graph)
    _free_layouts(graph, kept)
    _merge(graph, kept)
    graph.eliminate_dead_code()


def _near_writes(graph: Graph) -> set[Node]:
    calls = [node for node in graph.nodes if node.op == "call_function"]
    writing = [node for node in calls if isinstance(node.target, OpOverload) and node.target._schema.is_mutable]
    written = {place for node in writing for each in node.all_input_nodes for place in _memory(each)}
    return {node for node in calls for each in (node, *node.all_input_nodes) if written & _memory(each)}


def _memory(node: Node) -> set[int]:
    values = [value for value in tree_leaves(node.meta.get("val")) if isinstance(value, Tensor)]
    return {value.untyped_storage()._cdata for value in values}


def _free_layouts(graph: Graph, kept: set[Node]) -> None:
    """Replace views by reshapes, so that the compiler may choose every memory layout."""
    if any(_all(graph, aten.as_strided)):
        raise MetastepError("the step looks at the memory of a tensor (as_strided), whose layout would be free.")
    for node in _all(graph, aten.view, aten._unsafe_view):
        if node.target is not aten.view.dtype and node not in kept:
            node.target = aten.reshape.default


def _merge(graph: Graph, kept: set[Node]) -> None:
    seen: dict[object, Node] = {}
    zeros: set[Node] = set()
    for node in list(graph.nodes):
        if node.op != "call_function" or _is_random(node) or node in kept:
            continue
        if _is_zero(node, zeros):
            zeros.add(node)
        # As text: 1, 1.0 and True are equal as numbers, but not as arguments.
        content = _looks(node) if node in zeros else (node.target, repr((node.args, node.kwargs)))
        same = _unchanged(node, zeros) or seen.setdefault(content, node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
            zeros.discard(node)


def _unchanged(node: Node, zeros: set[Node]) -> Node | None:
    """Return an earlier node that `node` is equal to, or None."""
    candidates: list[Any]
    if _is(node, aten.reshape):
        candidates = list(_reshaped(node))
    elif _is(node, aten.cat):
        candidates = [_parted(node)]
    elif _is(node, aten.slice):
        candidates = [_piece(node)]
    elif _is(node, *_COPIES):
        candidates = [node.args[0]]
    elif _is(node, aten.copy):  # (where to, what)
        candidates = [node.args[1]]
    elif node.target in _SUMS:
        x, y = node.args[:2]
        candidates = [x] * (y in zeros) + [y] * (x in zeros and node.target is aten.add.Tensor and not node.kwargs)
    else:
        return None
    return next((each for each in candidates if isinstance(each, Node) and _looks(each) == _looks(node)), None)


def _reshaped(node: Node) -> Iterator[Node]:
    """Yield the node before one change of shape, before two, and so on."""
    while _is(node, aten.reshape):
        node = node.args[0]  # type: ignore[assignment]
        yield node


def _parted(cat: Node) -> object:
    """Return the vector that `cat` concatenates again from all of its parts in order, or None."""
    pieces: Any = cat.args[0]
    first = pieces[0]
    if first.target is not operator.getitem or not _is(first.args[0], aten.split_with_sizes):
        return None
    split = first.args[0]
    in_order = all(piece.target is operator.getitem and piece.args == (split, i) for i, piece in enumerate(pieces))
    whole = in_order and len(pieces) == len(split.args[1])
    return split.args[0] if whole and cat.args[1:] in ((), (0,)) and split.args[2:] in ((), (0,)) else None


def _piece(piece: Node) -> object:
    """Return the tensor that is cut out of a concatenation again, or None."""
    if len(piece.args) != 4:  # (vector, dimension, start, end)
        return None
    cat, dim, start, end = cast(Any, piece.args)
    if not _is(cat, aten.cat) or dim != 0 or cat.args[1:] not in ((), (0,)):
        return None
    lengths = [part.meta["val"].shape[0] for part in cat.args[0]]
    ends = list(accumulate(lengths))
    found = [part for part, n, stop in zip(cat.args[0], lengths, ends, strict=True) if (stop - n, stop) == (start, end)]
    return found[0] if found else None


def _is_zero(node: Node, zeros: set[Node]) -> bool:
    if _is(node, *_MADE_OF_ZEROS):
        return True
    nodes = node.all_input_nodes
    if _is(node, *_LINEAR):
        return bool(nodes) and len(nodes) == sum(each in zeros for each in nodes) and not _adds_a_number(node)
    if _is(node, *_BILINEAR):
        return any(each in zeros for each in nodes)
    if _is(node, aten.threshold_backward, aten.max_pool2d_with_indices_backward):  # linear in their first argument
        return node.args[0] in zeros
    if _is(node, aten.convolution):
        x, weight, bias = node.args[:3]
        return (x in zeros or weight in zeros) and (bias is None or bias in zeros)
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        return _part_is_zero(node.args[0], node.args[1], zeros)
    return False


def _part_is_zero(whole: Node, part: object, zeros: set[Node]) -> bool:
    if not _is(whole, aten.convolution_backward):
        return whole in zeros
    dy, x, weight = whole.args[:3]
    return dy in zeros or (part == 0 and weight in zeros) or (part == 1 and x in zeros)


def _adds_a_number(node: Node) -> bool:
    return _is(node, aten.add, aten.sub) and not all(isinstance(each, Node) for each in node.args[:2])


def _leave_out_gradients(graph: Graph) -> None:
    """Let the backward of a convolution compute only those of (dx, dw, db) that are read."""
    for node in _all(graph, aten.convolution_backward):
        read = {user.args[1] for user in node.users}
        node.update_arg(10, [bool(wanted) and i in read for i, wanted in enumerate(node.args[10])])  # type: ignore[arg-type]


def _ask_before_relu(graph: Graph) -> None:
    """Read the mask of a ReLU from its input: the gradient of BatchNorm reads the input anyway."""
    for node in _all(graph, aten.threshold_backward):
        _, y, bound = cast(Any, node.args)
        if _is(y, aten.relu) and bound == 0:
            node.update_arg(1, y.args[0])


def _lay_out(graph: Graph) -> None:
    """If pictures are channels last, convert all factors of convolutions to channels last, once each."""
    calls = [(node, 2 if _is(node, aten.convolution) else 3) for node in _all(graph, *_CONVOLUTIONS)]
    if not any(_together(node.args[count - 2]) and not _in_order(node.args[count - 2]) for node, count in calls):
        return
    laid: dict[Any, Node] = {}
    for node, count in calls:
        for place, value in enumerate(node.args[:count]):
            node.update_arg(place, _laid_out(graph, value, laid))


def _laid_out(graph: Graph, value: Any, laid: dict[Any, Node]) -> Node:
    """Return `value` in channels last. Convert the pieces of a concatenation: they can be computed in that layout."""
    if _together(value):
        return cast(Node, value)
    if value not in laid:
        pieces = [_laid_out(graph, piece, laid) for piece in value.args[0]] if value.target in _JOINS else []
        with graph.inserting_after(value):
            laid[value] = call(graph, value.target, pieces, *value.args[1:]) if pieces else _copied(graph, value)
    return laid[value]


def _copied(graph: Graph, value: Node) -> Node:
    copy = graph.call_function(aten.clone.default, (value,), {"memory_format": torch.channels_last})
    copy.meta["val"] = value.meta["val"].contiguous(memory_format=torch.channels_last)
    return copy


def _together(node: Any) -> bool:
    return bool(node.meta["val"].is_contiguous(memory_format=torch.channels_last))


def _in_order(node: Any) -> bool:
    return bool(node.meta["val"].is_contiguous())


def _all(graph: Graph, *packets: object) -> Iterator[Node]:
    return (node for node in graph.nodes if _is(node, *packets))


def _is(node: Node, *packets: object) -> bool:
    return getattr(node.target, "overloadpacket", None) in packets


def _is_random(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _looks(node: Node) -> object:
    value = node.meta.get("val")
    return (value.shape, value.dtype, value.device) if isinstance(value, Tensor) else node


# ---- compute the gradient of max-pooling by `torch.where`


def max_pool2d_with_indices_backward(
    dy: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], ceil_mode: bool, indices: Tensor,
) -> Any:  # fmt: skip
    """Return PyTorch's gradient, or NotImplemented if windows overlap, leave gaps or cross the edge."""
    del ceil_mode  # without an edge it makes no difference
    (rows, columns), (height, width) = dy.shape[-2:], _both(kernel)
    tiled = x.shape[-2:] == (rows * height, columns * width) and _both(stride or kernel) == (height, width)
    if not tiled or any(padding) or _both(dilation) != (1, 1):
        return NotImplemented
    pixels = torch.arange(rows * height * columns * width, device=x.device).view(rows, height, columns, width)
    windows = (*dy.shape[:-2], rows, 1, columns, 1)
    return torch.where(indices.reshape(windows) == pixels, dy.reshape(windows), 0.0).reshape(x.shape)


def _both(sides: Sequence[int]) -> tuple[int, int]:
    return sides[0], sides[-1]
