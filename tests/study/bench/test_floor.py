"""The floor's formulas, against what PyTorch counts and what the library does."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, jvp
from torch.utils.flop_counter import FlopCounterMode

from metastep.core.counting import counting
from metastep.core.trees import map_tree
from study.bench.cases import METHODS, SETTINGS, STANDARD, Case
from study.bench.floor import H200, NUMBER, floor, layers, parameters, passes, total
from study.bench.implementations.ours import gradient_of
from study.bench.workload import net_of, workload
from tests.study.bench.helpers import CPU, tiny_case

PICTURES = 10
MINI = "miniimagenet-5w1s"
both_nets = pytest.mark.parametrize("name", [STANDARD, MINI])


def loss_of(name: str, net: torch.nn.Module, params: dict[str, torch.Tensor]) -> torch.Tensor:
    setting = SETTINGS[name]
    x, y = torch.rand(PICTURES, setting.channels, setting.size, setting.size), torch.arange(5).repeat(2)
    return F.cross_entropy(functional_call(net, params, x), y)


def counted(counter: FlopCounterMode) -> int:
    return int(counter.get_total_flops())


@pytest.mark.parametrize(("name", "number"), [(STANDARD, 113_221), (MINI, 32_773)])
def test_parameters_are_those_of_the_net(name: str, number: int) -> None:
    assert parameters(SETTINGS[name]) == sum(p.numel() for p in net_of(SETTINGS[name]).parameters()) == number


@both_nets
def test_a_forward_and_a_gradient_are_what_pytorch_counts(name: str) -> None:
    net = net_of(SETTINGS[name])
    with FlopCounterMode(display=False) as forward:
        loss = loss_of(name, net, dict(net.named_parameters()))
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    least = list(layers(SETTINGS[name]))
    assert sum(layer.forward(PICTURES).operations for layer in least) == counted(forward)
    assert sum(layer.backward(PICTURES).operations for layer in least) == counted(backward)


@both_nets
def test_a_product_needs_no_more_than_pytorch_spends(name: str) -> None:
    net = net_of(SETTINGS[name])
    params = map_tree(torch.Tensor.detach, dict(net.named_parameters()))
    with FlopCounterMode(display=False) as counter:
        jvp(grad(lambda p: loss_of(name, net, p)), (params,), (map_tree(torch.ones_like, params),))
    products = (
        layer.forward_of_product(PICTURES) + layer.backward_of_product(PICTURES) for layer in layers(SETTINGS[name])
    )
    least = total(products).operations
    assert 0.6 * counted(counter) < least <= counted(counter)


@both_nets
def test_arrays_are_those_of_the_net(name: str) -> None:
    setting = SETTINGS[name]
    net, (*blocks, head) = net_of(setting), layers(setting)
    x = torch.zeros(2, setting.channels, setting.size, setting.size)
    for block, layer in zip(net.get_submodule("blocks").children(), blocks, strict=True):
        convolved, seen = block.get_submodule("0")(x), block(x)
        assert (layer.inputs, layer.outputs, layer.seen) == tuple(y[0].numel() for y in (x, convolved, seen))
        x = seen
    assert (head.inputs, head.outputs, head.seen) == (x[0].numel(), 5, 5)


def test_what_is_pooled_is_passed_on_small_and_kept_whole() -> None:
    """84×84 of 32 filters, and a quarter of it"""
    layer, pictures, whole, small = next(layers(SETTINGS[MINI])), 3 * 84**2, 32 * 84**2, 32 * 42**2
    weights = 32 * (27 + 2)

    def numbers(*each: int, weights_read: int) -> int:
        return NUMBER * (sum(each) + weights_read * weights)

    assert layer.forward(1, way_back=False).bytes == numbers(pictures, small, weights_read=1)
    assert layer.forward(1).bytes == numbers(pictures, whole, small, weights_read=1)
    assert layer.backward(1).bytes == numbers(pictures, whole, small, weights_read=2)
    assert layer.forward_of_product(1).bytes == numbers(pictures, 2 * whole, 2 * small, weights_read=2)
    assert layer.backward_of_product(1).bytes == numbers(pictures, 2 * whole, 2 * small, weights_read=3)


@pytest.mark.parametrize("label", METHODS)
def test_passes_are_those_of_the_estimator(label: str) -> None:
    method, window = METHODS[label]
    case: Case = tiny_case(method=method, window=window, steps=8)
    work = workload(case, CPU)
    task = map_tree(lambda x: x[0], work.episodes(0))
    with counting() as counts:
        gradient_of(work).estimator(work.meta, task)
    going = passes(method, 8, window)
    assert (counts.gradients, counts.products) == (going.gradients + going.outer_gradient, going.products)


@both_nets
def test_the_floor_grows_with_what_it_should(name: str) -> None:
    tasks = SETTINGS[name].tasks
    exact = floor(name, "maml", 8, 1, tasks)
    first_order, shared = floor(name, "first_order", 8, 1, tasks), floor(name, "multi_step", 8, 4, tasks)
    assert shared.operations < first_order.operations < exact.operations  # two gradients and products, eight gradients
    assert floor(name, "maml", 8, 1, 2 * tasks).operations == 2 * exact.operations
    arithmetic, traffic = exact.milliseconds(H200)
    assert 0.05 < arithmetic < traffic < 2  # small layers: bytes decide
