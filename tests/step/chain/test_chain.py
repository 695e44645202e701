"""Which nets are chains, why others are not, and how parameters lie in one vector."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import metastep as ms
from metastep.core.options import options_of
from metastep.core.registry import named, names
from metastep.nets.conv4 import Conv4, SamePad
from metastep.step.chain.chain import NotAChainError, chain_of
from tests.step.chain.helpers import NETS, Net

VARIANTS = [name for name in names("net") if "filters" in options_of(named("net", name))]  # of Conv4


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_parameters_go_into_one_vector_and_back(net: Net) -> None:
    module = net.build()
    chain = chain_of(module, net.size)
    params = {name: p.detach() for name, p in ms.parameters(module).items()}
    flat = chain.to_flat(params)
    assert flat.shape == (chain.length,)
    assert [block.seen_size for block in chain.blocks] == net.sizes[1:]
    back = chain.from_flat(flat, params)
    assert back.keys() == params.keys()
    assert all(torch.equal(back[name], params[name]) for name in params)
    assert flat.square().sum() == pytest.approx(sum(p.square().sum().item() for p in params.values()))


# Why the published variants of Conv4 are no chains; None: it is one
REASONS: dict[str, str | None] = {
    "conv4": None,
    "finn_omniglot": "'mean' is no layer that is known here",
    "finn_mini": None,
    "dragen_omniglot": "Conv2d → ReLU → BatchNorm2d",
    "dragen_mini": "Conv2d → ReLU → BatchNorm2d",
    "reptile_omniglot": None,
    "reptile_mini": None,
    "imaml_omniglot": None,
}


@pytest.mark.parametrize("name", VARIANTS)
def test_nets_of_the_registry(name: str) -> None:
    size = 84 if name.endswith("mini") else 28
    net = named("net", name)(ways=5, channels=1, size=size, filters=4)
    if (reason := REASONS[name]) is None:
        assert len(chain_of(net, size).blocks) == 4
    else:
        with pytest.raises(NotAChainError, match=reason):
            chain_of(net, size)


@pytest.mark.parametrize(
    "pool",
    [nn.MaxPool2d(2, stride=1), nn.MaxPool2d(3, padding=1), nn.MaxPool2d((2, 1)), nn.MaxPool2d(2, dilation=2)],
)
def test_other_poolings_are_refused(pool: nn.MaxPool2d) -> None:
    block = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU(), pool]
    with pytest.raises(NotAChainError, match="windows side by side"):
        chain_of(nn.Sequential(*block, nn.Flatten(), nn.Linear(4, 2)), 8)


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net().build()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) + x.mean()


class Functional(nn.Module):
    """A chain all the same"""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)
        self.head = nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(torch.relu(self.norm(self.conv(x))), 1))


def changed(change: Callable[[nn.Sequential], Any]) -> nn.Module:
    net = Net().build()
    change(net)
    return net


def block(net: nn.Sequential) -> nn.Sequential:
    first = net[0]
    assert isinstance(first, nn.Sequential)
    return first


def repeated() -> nn.Module:
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    conv = nn.Conv2d(4, 4, 3, padding=1)
    return nn.Sequential(conv, norm, nn.ReLU(), conv, norm, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 3))


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (Skips(), "sees more than the layer before it"),
        (changed(lambda net: block(net).insert(0, nn.Dropout())), "Dropout"),
        (changed(lambda net: block(net).__setitem__(1, nn.BatchNorm2d(4))), "running statistics"),
        (changed(lambda net: block(net).__setitem__(0, nn.Conv2d(1, 4, 3, stride=(1, 2)))), r"stride = \(1, 2\)"),
        (changed(lambda net: block(net).__setitem__(0, nn.Conv2d(1, 4, 3, padding="same"))), "padding = same"),
        (changed(lambda net: block(net).__setitem__(0, nn.Conv2d(1, 4, 3, dilation=2))), "dilation"),
        (changed(lambda net: net[0][0].weight.requires_grad_(False)), "'0.0.weight' is frozen"),
        (changed(lambda net: net.append(nn.Linear(3, 3))), "Flatten → Linear → Linear"),
        (changed(lambda net: (net.pop(3), net.pop(2))), "does not end with a linear head"),
        (changed(lambda net: net.register_forward_hook(print)), "hooks"),
        (changed(lambda net: net[0].register_full_backward_hook(print)), "hooks"),
        (changed(lambda net: setattr(net[-1], "forward", net[-1].forward)), "was replaced"),
        (changed(lambda net: net.__setitem__(3, nn.Linear(20, 3, bias=False))), "has no bias"),
        (changed(lambda net: block(net).insert(0, nn.ZeroPad2d((0, 1, 0, 2)))), "pads rows and columns differently"),
        (changed(lambda net: block(net).insert(0, nn.ZeroPad2d(-1))), "or crops"),
        (changed(lambda net: block(net).insert(1, SamePad())), "Conv2d → SamePad → BatchNorm2d"),
        (changed(lambda net: net.insert(2, nn.ZeroPad2d(1))), "ZeroPad2d → Flatten → Linear"),
        (repeated(), "used twice"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), "no block of a chain"),
    ],
)
def test_what_is_no_chain_says_why(net: nn.Module, reason: str) -> None:
    with pytest.raises(NotAChainError, match=reason):
        chain_of(net, 8)


def test_hooks_of_all_modules_are_hooks_too() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.raises(NotAChainError, match="hooks"):
            chain_of(Functional(), 8)
    finally:
        handle.remove()


def test_layers_called_as_functions_are_seen() -> None:
    assert len(chain_of(Functional(), 8).blocks) == 1


def test_pictures_of_another_size_are_refused() -> None:
    with pytest.raises(
        ms.MetastepError,
        match="size = 84: such pictures leave 64 × 6 × 6 features for layer 'head', which takes 256",
    ):
        chain_of(Conv4(5), 84)
