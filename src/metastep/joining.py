"""Vectors that are joined of many pieces, each in one launch: a compiler would copy every piece by a kernel of its own.

Pieces that were neighbours before are one, and so are zeros beside zeros.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.fx import Graph, Node

from metastep.merging import call

aten = torch.ops.aten

MANY = 9  # pieces; inductor makes up to eight a part of what reads them
_ZEROS = (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)


@torch.library.custom_op("metastep::join", mutates_args=())
def join(pieces: Sequence[Tensor]) -> Tensor:
    """As `torch.cat`, which inductor would take apart"""
    return torch.cat(list(pieces))


@join.register_fake
def _(pieces: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(pieces))


def join_at_once(graph: Graph) -> None:
    for node in [node for node in graph.nodes if node.target is aten.cat.default]:
        pieces = cast(list[Node], node.args[0])
        if len(pieces) < MANY or any(piece.meta["val"].dim() != 1 for piece in pieces):
            continue
        with graph.inserting_before(node):
            pieces = [_as_one(graph, run) for run in _runs(pieces)]
            whole = pieces[0] if len(pieces) == 1 else _joined(graph, pieces)
        node.replace_all_uses_with(whole)
        graph.erase_node(node)


def _joined(graph: Graph, pieces: list[Node]) -> Node:
    return call(graph, aten.cat.default if len(pieces) < MANY else torch.ops.metastep.join.default, pieces)


def _runs(pieces: Sequence[Node]) -> list[list[Node]]:
    """Pieces that belong together"""
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
    """vector[start:stop]"""

    vector: Node
    start: int
    stop: int


def _cut(piece: Node) -> _Cut | None:
    if piece.target is not aten.slice.Tensor or len(piece.args) != 4:  # a fifth would be a step
        return None
    vector, _, start, stop = cast(Any, piece.args)
    return _Cut(vector, start, min(stop, len(vector.meta["val"])))


def _is_zeros(piece: Node) -> bool:
    while piece.target is aten.reshape.default:
        piece = cast(Node, piece.args[0])
    return piece.target in _ZEROS
