"""A vector of many pieces is joined at once, of as few as there are."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from metastep.step.compiler.compiling import compiled, traced
from metastep.step.compiler.joining import MANY

# The tracers still call what PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def pieces_of(function: Callable[[Tensor], Tensor]) -> list[int]:
    """How many pieces each joined vector of a trace is of; it must give the same"""
    step = lambda state, x: (state, function(x))  # noqa: E731
    arguments = torch.zeros(1), torch.randn(60, dtype=torch.float64)
    got, expected = compiled(step, arguments, lambda graph, _: graph)(*arguments), step(*arguments)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    nodes = traced(step, arguments)[0].graph.nodes
    return [len(node.args[0]) for node in nodes if "join" in str(node.target) or "cat" in str(node.target)]


def cuts(x: Tensor, count: int = MANY) -> list[Tensor]:
    return [x[i * 60 // count : (i + 1) * 60 // count] for i in range(count)]


def zeros(*sizes: int) -> list[Tensor]:
    return [torch.zeros(size, dtype=torch.float64) for size in sizes]


def test_pieces_that_were_no_neighbours_stay_apart() -> None:
    assert pieces_of(lambda x: torch.cat(cuts(x.sin())[::-1])) == [MANY]
    assert pieces_of(lambda x: torch.cat([x[:2], *(x[i + 3 : i + 4] for i in range(MANY))])) == [2]  # x[2] is left out
    assert pieces_of(lambda x: torch.cat([x[i::MANY] for i in range(MANY)])) == [MANY]


def test_neighbours_are_one() -> None:
    assert pieces_of(lambda x: torch.cat(cuts(x.sin())).cos()) == []
    assert pieces_of(lambda x: torch.cat([*cuts(x.sin(), MANY + 2)[1:], x])) == [2]
    assert pieces_of(lambda x: torch.cat([*cuts(x.sin()), *cuts(x.cos())])) == [2]


def test_zeros_are_one() -> None:
    assert pieces_of(lambda x: torch.cat([x.sin(), *zeros(3, 1, 2, 3, 1, 1, 5, 2), x])) == [3]


def test_zeros_between_pieces_are_made_where_they_are_joined() -> None:
    parts = lambda x: [each for part in cuts(x.sin())[::-1] for each in (part, *zeros(len(part)))]  # noqa: E731
    assert pieces_of(lambda x: torch.cat([*zeros(0), *parts(x)])) == [MANY]


def test_a_vector_of_sums_is_a_sum_of_vectors() -> None:
    def sums(x: Tensor, *shape: int) -> list[Tensor]:
        pairs = zip(cuts(x.sin(), 10), cuts(x.cos(), 10)[::-1], strict=True)
        return [(a.view(shape) + b.view(shape)).flatten() for a, b in pairs]

    assert pieces_of(lambda x: torch.cat(sums(x, -1))) == [10]  # the sines are one vector, which nothing joins
    assert pieces_of(lambda x: torch.cat(sums(x, 2, 3))) == [10]
    assert pieces_of(lambda x: torch.cat([*sums(x, -1), x])) == [2, 10]  # zeros are added to x, and are no piece
    assert pieces_of(lambda x: torch.cat([piece + 1 for piece in cuts(x.sin())[::-1]])) == [MANY]


def test_what_is_cut_into_many_pieces_is_kept_whole() -> None:
    def kept(count: int) -> int:
        step = lambda state, x: (state, [part.cos() for part in cuts(x.sin() + state, count)])  # noqa: E731
        arguments = torch.ones(1, dtype=torch.float64), torch.randn(60, dtype=torch.float64)
        made = compiled(step, arguments, lambda graph, _: graph)(*arguments)
        torch.testing.assert_close(made, step(*arguments), rtol=0, atol=0)
        nodes = traced(step, arguments)[0].graph.nodes
        (sum,) = [node for node in nodes if str(node.target) == "aten.add.Tensor"]
        readers = [str(user.target) for user in sum.users]
        assert readers in (["aten.as_strided.default"], ["aten.slice.Tensor"] * count)
        return len(readers)

    assert (kept(MANY), kept(MANY - 1)) == (1, MANY - 1)


def test_few_pieces_stay() -> None:
    assert pieces_of(lambda x: torch.cat(cuts(x.sin(), 3)[::-1])) == [3]
    assert pieces_of(lambda x: torch.cat([part[:, None] for part in cuts(x.sin())])) == [MANY]
