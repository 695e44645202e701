"""Lower precision: a net as a whole, and torch.autocast."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import metastep as ms
from metastep.step.mapped import mapped
from tests.core.as_written import gradient_of
from tests.core.helpers import relative_error


class Autocast(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out: Tensor = self.net(x).float()
        return out


def pictures() -> tuple[nn.Module, ms.Task]:
    """With BatchNorm, in float32"""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    parts = ((torch.randn(2, 9, 1, 6, 6), torch.arange(9).repeat(2, 1) % 3) for _ in range(2))
    return ms.use_batch_statistics(net), ms.Task(*parts)


def meta_gradient(
    net: nn.Module, tasks: ms.Task, curvature: Any = ms.curvature.exact, chunk_size: int | None = None
) -> dict[str, Tensor]:
    """By autograd, also where derivatives are written out by hand"""
    gradient = gradient_of(ms.few_shot(net, F.cross_entropy), 4, ms.MultiStep(2, curvature))
    by_autograd = mapped(gradient.method, gradient.loop, chunk_size)
    found: dict[str, Tensor] = by_autograd(ms.parameters(net), tasks).grad
    return found


@pytest.mark.parametrize("curvature", [ms.curvature.exact, ms.curvature.exact_forward])
def test_a_net_and_its_data_in_bfloat16(curvature: Any) -> None:
    net, tasks = pictures()
    expected = list(meta_gradient(net, tasks).values())
    half = ms.Task(*((x.bfloat16(), y) for x, y in tasks))
    found = [each.float() for each in meta_gradient(net.bfloat16(), half, curvature).values()]
    assert relative_error(found, expected) < 0.1


@pytest.mark.parametrize("curvature", [ms.curvature.exact, ms.curvature.exact_forward])
def test_autocast_without_normalisation(curvature: Any) -> None:
    net, tasks = pictures()
    net[1] = nn.Identity()
    expected = list(meta_gradient(net, tasks).values())
    found = list(meta_gradient(Autocast(net), tasks, curvature).values())
    assert 0 < relative_error(found, expected) < 0.1


def test_autocast_with_normalisation_says_what_to_do_instead() -> None:
    net, tasks = pictures()
    with pytest.raises(ms.MetastepError, match=r"torch.autocast .* cast in a loss .*p\.bfloat16\(\).* chunk_size=1"):
        meta_gradient(Autocast(net), tasks)
    found = list(meta_gradient(Autocast(net), tasks, chunk_size=1).values())
    assert 0 < relative_error(found, list(meta_gradient(net, tasks).values())) < 0.1
