"""Features of any module, and its buffers as values."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad

from metastep.core.modules import evaluation_mode, parameters
from metastep.errors import MetastepError
from metastep.train.transfer.features import Tapped, batch_statistics, buffers_of, feature_shapes, tap, tap_and_update
from tests.train.transfer.helpers import TARGET_LAYERS, Pupil, pictures, pupil_by_hand


def pupil() -> Pupil:
    torch.manual_seed(0)
    return Pupil().double().train()


def test_features_are_the_outputs_of_the_layers() -> None:
    net, x = pupil(), pictures(4)
    with batch_statistics(net):
        output, features = tap(net, parameters(net), buffers_of(net), x, TARGET_LAYERS)
    logits, expected = pupil_by_hand(parameters(net), x)
    for a, b in zip([output, *features], [logits, *expected], strict=True):
        torch.testing.assert_close(a, b)
    assert not any(part._forward_hooks for part in net.modules())


def test_tapping_is_a_function_of_the_parameters_given() -> None:
    net, x = pupil(), pictures(4)
    params = {name: torch.randn_like(p, requires_grad=True) for name, p in parameters(net).items()}

    def through(params: dict[str, Tensor]) -> Tensor:
        with batch_statistics(net):
            return tap(net, params, {}, x, ("high",))[1][0].square().sum()

    gradient = grad(through)(params)
    high = pupil_by_hand(params, x)[1][1].square().sum()
    expected = torch.autograd.grad(high, list(params.values()), materialize_grads=True)
    for g, e in zip(gradient.values(), expected, strict=True):
        torch.testing.assert_close(g, e)
    assert not gradient["fc.weight"].any()  # above the feature: zeros, not None


@pytest.mark.parametrize("inside_grad", [False, True])
def test_running_statistics_equal_those_of_the_plain_module(inside_grad: bool) -> None:
    net = pupil()
    plain, buffers, before = deepcopy(net), buffers_of(net), {k: b.clone() for k, b in net.named_buffers()}

    def updated(params: dict[str, Tensor], x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        output, _, buffers_after = tap_and_update(net, params, buffers, x, ())
        return output.sum(), buffers_after

    for _ in range(3):
        x = pictures(4)
        plain(x)
        step = grad(updated, has_aux=True) if inside_grad else updated
        buffers = step(parameters(net), x)[1]
    for name, buffer in plain.named_buffers():
        assert torch.equal(buffers[name], buffer)
    assert buffers["bn1.num_batches_tracked"] == 3
    assert all(torch.equal(b, before[name]) for name, b in net.named_buffers())


def test_batch_statistics_for_a_while() -> None:
    net, x = pupil(), pictures(4)
    before = {name: b.clone() for name, b in net.named_buffers()}
    with batch_statistics(net):
        inside = net(x)
    assert all(torch.equal(b, before[name]) for name, b in net.named_buffers())
    assert torch.equal(net(x), inside)  # the same normalisation
    assert net.bn1.num_batches_tracked == 1  # and now it counts again


def test_held_normalisation_stays_held() -> None:
    """A BatchNorm that the user has put in evaluation mode uses what it has, in virtual steps too"""
    net, x = pupil(), pictures(4)
    net.bn1.eval()
    held = net.bn1(x.expand(-1, 4, -1, -1))
    with batch_statistics(net):
        assert torch.equal(net.bn1(x.expand(-1, 4, -1, -1)), held)


def test_evaluating_gives_every_part_its_mode_back() -> None:
    net = pupil()
    net.bn1.eval()
    with evaluation_mode(net):
        assert not any(part.training for part in net.modules())
    assert net.training
    assert net.bn2.training
    assert not net.bn1.training


def test_sizes_are_found_by_running_a_batch() -> None:
    net = pupil()
    before = {name: b.clone() for name, b in net.named_buffers()}
    assert feature_shapes(Tapped(net, TARGET_LAYERS), pictures(1)) == [(4, 8, 8), (3, 2, 2)]
    assert net.training
    assert all(torch.equal(b, before[name]) for name, b in net.named_buffers())


def test_a_layer_may_end_in_place() -> None:
    net = nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True)), nn.Conv2d(2, 2, 3))
    x = torch.randn(2, 1, 8, 8)
    gradient = grad(lambda params: tap(net, params, {}, x, ("0",))[1][0].sum())(parameters(net))
    net[0](x).sum().backward()
    torch.testing.assert_close(gradient["0.0.weight"], net[0][0].weight.grad)


class Spare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Conv2d(1, 2, 3), nn.Conv2d(1, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("net", "layer", "message"),
    [
        (Pupil(), "hihg", "no layer 'hihg'. Did you mean 'high'?.*conv1, bn1, low"),
        (Pupil(), "", "no layer ''"),
        (Pupil(), "fc", r"'fc' gives \(2, 3\).*\(batch, channels, height, width\)"),
        (Spare(), "spare", "'spare' but does not call it"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True)), "0", "overwrites what '0' gives"),
    ],
)
def test_refusals(net: nn.Module, layer: str, message: str) -> None:
    with pytest.raises(MetastepError, match=message):
        feature_shapes(Tapped(net, (layer,)), torch.randn(2, 1, 8, 8))
    assert not any(part._forward_hooks for part in net.modules())
