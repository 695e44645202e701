"""The floor's formulas, against what PyTorch counts and what the library does."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, jvp
from torch.utils.flop_counter import FlopCounterMode

import metastep as ms
from metastep.bench.cases import METHODS, SETTINGS, STANDARD, Case
from metastep.bench.floor import H200, floor, layers, parameters, passes
from metastep.bench.implementations.ours import estimator_of
from metastep.bench.workload import workload
from metastep.nets import Conv4
from metastep.trees import map_tree
from tests.bench.helpers import CPU, tiny_case

PICTURES = 10


@pytest.fixture
def net() -> Conv4:
    return Conv4(5)


def loss_of(net: Conv4, params: dict[str, torch.Tensor]) -> torch.Tensor:
    x, y = torch.rand(PICTURES, 1, 28, 28), torch.arange(5).repeat(2)
    return F.cross_entropy(functional_call(net, params, x), y)


def counted(counter: FlopCounterMode) -> int:
    return int(counter.get_total_flops())


def test_parameters_are_those_of_the_net(net: Conv4) -> None:
    assert parameters(SETTINGS[STANDARD]) == sum(p.numel() for p in net.parameters()) == 113_221


def test_a_forward_and_a_gradient_are_what_pytorch_counts(net: Conv4) -> None:
    with FlopCounterMode(display=False) as forward:
        loss = loss_of(net, dict(net.named_parameters()))
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    least = list(layers(SETTINGS[STANDARD]))
    assert sum(layer.forward(PICTURES).operations for layer in least) == counted(forward)
    assert sum(layer.gradient(PICTURES).operations for layer in least) == counted(forward) + counted(backward)


def test_a_product_needs_no_more_than_pytorch_spends(net: Conv4) -> None:
    params = {name: p.detach() for name, p in net.named_parameters()}
    with FlopCounterMode(display=False) as counter:
        jvp(grad(lambda p: loss_of(net, p)), (params,), (map_tree(torch.ones_like, params),))
    least = sum(layer.product(PICTURES).operations for layer in layers(SETTINGS[STANDARD]))
    assert 0.6 * counted(counter) < least <= counted(counter)


@pytest.mark.parametrize("label", METHODS)
def test_passes_are_those_of_the_estimator(label: str) -> None:
    method, window = METHODS[label]
    case: Case = tiny_case(method=method, window=window, steps=8)
    work = workload(case, CPU)
    task = map_tree(lambda x: x[0], work.episodes(0))
    with ms.counting() as counts:
        estimator_of(work)(work.meta, task)
    going = passes(method, 8, window)
    assert (counts.gradients, counts.products) == (going.gradients + going.outer_gradient, going.products)


def test_the_floor_grows_with_what_it_should() -> None:
    exact = floor(STANDARD, "maml", 8, 1, tasks=32)
    first_order, shared = floor(STANDARD, "first_order", 8, 1, 32), floor(STANDARD, "multi_step", 8, 4, 32)
    assert shared.operations < first_order.operations < exact.operations  # two gradients and products, eight gradients
    assert floor(STANDARD, "maml", 8, 1, tasks=64).operations == 2 * exact.operations
    arithmetic, traffic = exact.milliseconds(H200)
    assert 0.05 < arithmetic < traffic < 2  # small layers: bytes decide
