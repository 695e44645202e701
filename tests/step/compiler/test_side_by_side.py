"""Tensors side by side are as `torch.cat`, by any backend."""

from shutil import which
from typing import Any

import pytest
import torch
from torch import Tensor

from metastep.step.compiler.compiling import Compiled, as_traced, inductor
from metastep.step.compiler.side_by_side import SIDE_BY_SIDE

# The tracers still call what PyTorch deprecates.
pytestmark = [
    pytest.mark.compiled,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

COMPILER = pytest.mark.skipif(not (which("g++") or which("clang++")), reason="inductor needs a C++ compiler")


def step(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """What is joined is also read by others"""
    y = (x + state).sin()
    return y, SIDE_BY_SIDE([y, x], 1).square()


@pytest.mark.parametrize("backend", [as_traced, pytest.param(inductor, marks=COMPILER)])
def test_as_cat(backend: Any) -> None:
    state, x = torch.randn(2, 3, 4, 4, dtype=torch.float64), torch.randn(2, 3, 4, 4, dtype=torch.float64)
    made = Compiled(step, backend)
    y, both = made(state, x)
    assert "not compiled" not in made.path
    torch.testing.assert_close(both, torch.cat([y, x], 1).square(), rtol=0, atol=0)
    torch.testing.assert_close(y, (x + state).sin(), rtol=1e-12, atol=0)
