"""Concatenate many pieces into a vector by one launch. Inductor would copy every piece by its own kernel.

Neighbouring slices of one vector are merged, and so are adjacent zeros. A vector of sums becomes a sum of vectors: the
terms need no kernels of their own, and one of them often is a vector already. Conversely, a vector that is cut into
many pieces stays one vector in memory.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.fx import Graph, Node

from metastep.step.compiler.merging import call

aten = torch.ops.aten

MANY = 9  # pieces; inductor fuses up to eight into their readers
_SPLIT = aten.split_with_sizes.default
_ZEROS = (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)


@torch.library.custom_op("metastep::join", mutates_args=())
def join(pieces: Sequence[Tensor], order: Sequence[int]) -> Tensor:
    """Concatenate pieces. `order` has indices of pieces, and -n for n zeros. Inductor would decompose `torch.cat`."""
    zeros = pieces[0].new_zeros(-min(0, *order))
    return torch.cat([pieces[i] if i >= 0 else zeros[:-i] for i in order])


@join.register_fake
def _(pieces: Sequence[Tensor], order: Sequence[int]) -> Tensor:
    return pieces[0].new_empty(sum(len(pieces[i]) if i >= 0 else -i for i in order))


def join_at_once(graph: Graph) -> None:
    """Replace concatenations of many vectors."""
    for node in [node for node in graph.nodes if node.target is aten.cat.default]:
        pieces = cast(list[Node], node.args[0])
        if len(pieces) < MANY or any(piece.meta["val"].dim() != 1 for piece in pieces):
            continue
        with graph.inserting_before(node):
            node.replace_all_uses_with(_joined(graph, pieces))
        graph.erase_node(node)


def keep_whole(graph: Graph) -> None:
    """Compute a vector once if it is cut into many pieces. Inductor would compute each piece in its reader.

    Inductor counts the tensors that a kernel reads, and a sum of four small vectors counts as much as four maps.
    """
    for node in list(graph.nodes):
        if _cuts(node) >= MANY:
            with graph.inserting_after(node):
                kept = call(graph, aten.as_strided.default, node, list(node.meta["val"].shape), [1])  # stores it
            node.replace_all_uses_with(kept, delete_user_cb=lambda user, kept=kept: user is not kept)


def _cuts(node: Node) -> int:
    """Return the number of pieces that a vector is cut into."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.dim() != 1:
        return 0
    return sum(len(user.users) if user.target is _SPLIT else user.target is aten.slice.Tensor for user in node.users)


def _joined(graph: Graph, pieces: list[Node]) -> Node:
    sums = [_sum(piece) for piece in pieces]
    if sum(each is not None for each in sums) >= MANY:
        terms = [_terms(graph, *pair) for pair in zip(pieces, sums, strict=True)]
        return call(graph, aten.add.Tensor, *(_joined(graph, list(side)) for side in zip(*terms, strict=True)))
    pieces = [_as_one(graph, run) for run in _runs(pieces)]
    if len(pieces) == 1:
        return pieces[0]
    if len(pieces) < MANY:
        return call(graph, aten.cat.default, pieces)
    filled = [piece for piece in pieces if not _is_zeros(piece)]
    places = {piece: i for i, piece in enumerate(filled)}
    order = [places.get(piece, -len(piece.meta["val"])) for piece in pieces if len(piece.meta["val"])]
    return call(graph, torch.ops.metastep.join.default, filled, order)


def _sum(piece: Node) -> Node | None:
    """Return the sum x + y of equal shapes that `piece` is a reshape of, or None."""
    node = _before_reshapes(piece)
    if node.target is not aten.add.Tensor or node.kwargs:
        return None
    alike = all(isinstance(each, Node) and _looks(each) == _looks(node) for each in node.args)
    return node if alike else None


def _terms(graph: Graph, piece: Node, found: Node | None) -> list[Node]:
    """Return two vectors whose sum is `piece`."""
    if found is None:
        return [piece, call(graph, aten.new_zeros.default, piece, list(piece.meta["val"].shape))]
    return [_flat(graph, cast(Node, each)) for each in found.args]


def _flat(graph: Graph, node: Node) -> Node:
    base = _before_reshapes(node)
    return base if base.meta["val"].dim() == 1 else call(graph, aten.reshape.default, node, [-1])


def _before_reshapes(node: Node) -> Node:
    while node.target is aten.reshape.default:
        node = cast(Node, node.args[0])
    return node


def _looks(node: Node) -> tuple[torch.Size, torch.dtype]:
    value = node.meta["val"]
    return value.shape, value.dtype


def _runs(pieces: Sequence[Node]) -> list[list[Node]]:
    """Group neighbouring slices of one vector, and adjacent zeros."""
    runs = [[pieces[0]]]
    for before, piece in pairwise(pieces):
        if _follows(before, piece):
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return runs


def _follows(before: Node, piece: Node) -> bool:
    first, second = _cut(before), _cut(piece)
    if first and second:
        return (first.vector, first.stop) == (second.vector, second.start)
    return _is_zeros(before) and _is_zeros(piece)


def _as_one(graph: Graph, run: list[Node]) -> Node:
    if len(run) == 1:
        return run[0]
    first, last = _cut(run[0]), _cut(run[-1])
    if first and last:
        whole = first.start == 0 and last.stop == len(first.vector.meta["val"])
        return first.vector if whole else call(graph, aten.slice.Tensor, first.vector, 0, first.start, last.stop)
    return call(graph, aten.new_zeros.default, run[0], [sum(len(piece.meta["val"]) for piece in run)])


class _Cut(NamedTuple):
    """Describe vector[start:stop]."""

    vector: Node
    start: int
    stop: int


def _cut(piece: Node) -> _Cut | None:
    if piece.target is not aten.slice.Tensor or len(piece.args) != 4:  # a fifth argument would be a step
        return None
    vector, _, start, stop = cast(Any, piece.args)
    return _Cut(vector, start, min(stop, len(vector.meta["val"])))


def _is_zeros(piece: Node) -> bool:
    return _before_reshapes(piece).target in _ZEROS
