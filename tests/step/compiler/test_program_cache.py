"""What is made for one step serves its kin with the tensors that those hold, and nobody else."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from metastep.step.compiler import program_cache
from metastep.step.compiler.compiling import Compiled
from metastep.step.compiler.program_cache import Kin

# The tracers still call what PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def _nothing_was_made() -> Iterator[None]:
    program_cache._MADE.clear()
    yield
    program_cache._MADE.clear()


class Backend:
    """Runs the trace, and counts how often it is asked to make something"""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, graph: GraphModule, examples: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
        self.made += 1
        return graph


def step_with(scale: Tensor, shift: Tensor) -> Any:
    return lambda state, x: (state + scale * x, (shift * x).sum())


def check(backend: Backend, name: str, scale: float, shift: float, *, told: int = 2, size: int = 3) -> None:
    held = torch.full((3,), scale), torch.full((3,), shift)
    made = Compiled(step_with(*held), backend, Kin(name, held[:told]))
    x = torch.arange(3.0).repeat(size // 3, 1)
    torch.testing.assert_close(made(torch.zeros(3), x), (torch.zeros(3) + scale * x, shift * x.sum()))


def test_kin_is_made_once_and_keeps_what_it_holds() -> None:
    backend = Backend()
    for scale, shift in ((2.0, 3.0), (5.0, 7.0), (11.0, 13.0)):
        check(backend, "one", scale, shift)
    assert backend.made == 1


@pytest.mark.parametrize(
    ("name", "told", "size"),
    [
        ("other", 2, 3),
        ("one", 2, 6),
        ("one", 1, 3),  # it holds something of which nothing is told
    ],
)
def test_others_are_made_by_themselves(name: str, told: int, size: int) -> None:
    backend = Backend()
    check(backend, "one", 2.0, 3.0, told=told)
    check(backend, name, 5.0, 7.0, told=told, size=size)
    assert backend.made == 2


def test_ways_are_not_taken_for_each_other() -> None:
    backends = Backend(), Backend()
    for backend in backends:
        check(backend, "one", 2.0, 3.0)
    assert [backend.made for backend in backends] == [1, 1]


def test_a_part_of_what_is_told_is_not_the_whole() -> None:
    """Both begin at one place in memory"""
    backend = Backend()
    for value in (2.0, 5.0):
        whole = torch.full((2, 3), value)
        made = Compiled(step_with(whole[0], whole[0]), backend, Kin("one", (whole,)))
        torch.testing.assert_close(made(torch.zeros(3), torch.ones(3))[1], torch.tensor(3 * value))
    assert backend.made == 2


def test_only_the_last_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_cache, "KEPT", 2)
    backend = Backend()
    for name in ("one", "two", "three"):
        check(backend, name, 2.0, 3.0)
    assert len(program_cache._MADE) == 2
    check(backend, "three", 5.0, 7.0)
    assert backend.made == 3
    check(backend, "one", 5.0, 7.0)
    assert backend.made == 4
