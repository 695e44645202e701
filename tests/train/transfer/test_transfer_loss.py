"""The transfer loss, meta-networks, matching layers and pairs."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from metastep.core.modules import parameters
from metastep.errors import MetastepError
from metastep.nets.deep import VGG, ResNet18, ResNet32, ResNet34
from metastep.train.transfer.features import Tapped, tap
from metastep.train.transfer.losses import (
    Matching,
    MetaNetworks,
    guidance,
    guides,
    pairs_named,
    resized,
    transfer_loss,
)
from tests.train.transfer.helpers import naive_resize, naive_transfer_loss, parts, pictures


@pytest.mark.parametrize("pairs", ["all-to-all", "one-to-one", "1-0", "1-0, 0-1"])
def test_loss_equals_naive_loops(pairs: str) -> None:
    target, guided = parts(pairs=pairs)
    x = pictures(5)
    features = tap(target.module, {}, {}, x, target.layers)[1]
    seen = guides(guided, x)
    weights = guided.networks(seen.pooled)
    loss = transfer_loss(seen.maps, guided.matching(features), weights, guided.networks.pairs)
    wanted = tap(guided.source.module, {}, {}, x, guided.source.layers)[1]
    expected = naive_transfer_loss(
        wanted, features, parameters(guided.matching), parameters(guided.networks), guided.networks.pairs
    )
    torch.testing.assert_close(loss, expected)
    assert loss > 0


@pytest.mark.parametrize("size", [(8, 8), (2, 2), (16, 16), (4, 2)])
def test_maps_are_resized_between_the_centres_of_pixels(size: tuple[int, int]) -> None:
    maps = torch.randn(2, 3, 4, 8, dtype=torch.float64)
    expected = torch.stack([torch.stack([naive_resize(plane, *size) for plane in picture]) for picture in maps])
    torch.testing.assert_close(resized(maps, size), expected)


def test_weights_start_as_published() -> None:
    torch.manual_seed(0)
    networks = MetaNetworks([(0, 0), (1, 0)], [5, 3])
    first, second = networks([torch.randn(4, 5), torch.randn(4, 3)])
    assert torch.equal(first.what, torch.full((4, 5), 1 / 5))
    assert (first.where.shape, second.what.shape) == ((4,), (4, 3))
    assert first.where.std() > 0  # the where-weights are not zero
    assert (networks.where["0-0"].weight.abs() <= 5**-0.5).all()
    assert torch.equal(networks.where["0-0"].bias, torch.ones(1))


def test_where_is_cut_at_0_and_6() -> None:
    networks = MetaNetworks([(0, 0)], [1], uniform=True)
    nn.init.ones_(networks.where["0-0"].weight)
    (weights,) = networks([torch.tensor([[-9.0], [2.0], [9.0]])])
    assert weights.where.tolist() == [0, 3, 6]


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_sizes_of_the_published_pairs() -> None:
    small = (16, 32, 64), (64, 128, 256, 512, 512)
    large = (64, 128, 256, 512), (64, 128, 256, 512)
    for (source, target), theta, matching in ((small, 28_015, 165_424), (large, 1_400_336, 925_440)):
        pairs = pairs_named("all-to-all", len(source), len(target))
        assert count(MetaNetworks(pairs, source)) == theta
        assert count(Matching(pairs, source, target)) == matching


@pytest.mark.parametrize(
    ("source", "target", "size", "sizes"),
    [
        (ResNet32(200), VGG(10), 32, [32, 16, 8, 4, 2]),
        (ResNet34(10), ResNet18(5), 224, [56, 28, 14, 7]),
    ],
)
@torch.no_grad()
def test_guidance_between_the_published_nets(source: nn.Module, target: nn.Module, size: int, sizes: list[int]) -> None:
    x = torch.randn(1, 3, size, size)
    guided = guidance(Tapped(source, source.taps), Tapped(target, target.taps), "all-to-all", x)  # type: ignore[arg-type]
    assert guided.sizes == {i: (n, n) for i, n in enumerate(sizes)}
    assert count(guided.networks) in (28_015, 1_400_336)
    assert count(guided.matching) in (165_424, 925_440)


def test_pairs() -> None:
    assert pairs_named("all-to-all", 2, 3) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert pairs_named("one-to-one", 2, 2) == [(0, 0), (1, 1)]
    assert pairs_named("1-2, 0-0", 2, 3) == [(1, 2), (0, 0)]  # the source first


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("one-to-one", r"source \(2\) as of the target \(3\)"),
        ("2-0", r'"2-0" is not a pair of a source feature \(0 to 1\)'),
        ("0-3", r"a target feature \(0 to 2\)"),
        ("0-1,", '"" is not a pair'),
        ("0-1,0-1", "0-1 occurs more than once"),
        ("all", '"all" is not a pair'),
    ],
)
def test_pairs_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(MetastepError, match=message):
        pairs_named(text, 2, 3)


def test_a_map_of_another_size_is_refused_not_broadcast() -> None:
    one: Tensor = torch.randn(2, 3, 1, 1)
    weights = MetaNetworks([(0, 0)], [3])([one.mean((-2, -1))])
    with pytest.raises(MetastepError, match="another size"):
        transfer_loss([one], [torch.randn(2, 3, 4, 4)], weights, [(0, 0)])


def test_networks_are_functions_of_the_parameters_given() -> None:
    networks = MetaNetworks([(0, 0)], [3])
    zeros = {name: torch.zeros_like(p) for name, p in parameters(networks).items()}
    (weights,) = functional_call(networks, zeros, ([torch.randn(2, 3)],))
    assert not weights.where.any()
