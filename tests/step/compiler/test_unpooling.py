"""A max-pooling's gradient is a choice where windows tile the map, PyTorch's elsewhere; the numbers are the same."""

import pytest
import torch
from torch import Tensor
from torch.func import vjp
from torch.nn.functional import max_pool2d

from metastep.step.compiler.compiling import compiled, traced

# The tracers still call what PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

TILED = {"2×2": {"kernel_size": 2}, "2×3": {"kernel_size": (2, 3)}, "as strided": {"kernel_size": 3, "stride": 3}}
OTHERS = {
    "overlapping": {"kernel_size": 3, "stride": 2},
    "apart": {"kernel_size": 2, "stride": 3},
    "padded": {"kernel_size": 2, "padding": 1},
    "dilated": {"kernel_size": 2, "dilation": 3},
    "cut off": {"kernel_size": 4},
    "over the edge": {"kernel_size": 4, "ceil_mode": True},
}


def is_a_choice(pooling: dict[str, object], layout: torch.memory_format) -> bool:
    """Whether PyTorch's gradient is gone from the trace, which must give the same"""

    def step(x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        return x, vjp(lambda x: max_pool2d(x, **pooling), x)[1](dy)[0]  # type: ignore[arg-type]

    torch.manual_seed(0)
    x = torch.randint(3, (2, 5, 6, 6)).double().contiguous(memory_format=layout)  # of equal ones, one is the maximum
    arguments = x, torch.randn_like(max_pool2d(x, **pooling))  # type: ignore[arg-type]
    got, expected = compiled(step, arguments, lambda graph, _: graph)(*arguments), step(*arguments)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    return "max_pool2d_with_indices_backward" not in str(traced(step, arguments)[0].graph)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", TILED)
def test_windows_side_by_side_choose(name: str, layout: torch.memory_format) -> None:
    assert is_a_choice(TILED[name], layout)


@pytest.mark.parametrize("name", OTHERS)
def test_other_windows_add_up(name: str) -> None:
    assert not is_a_choice(OTHERS[name], torch.contiguous_format)
