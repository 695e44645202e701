"""What was prepared for a module is prepared again where the module has changed, and only there."""

from collections.abc import Callable
from types import MethodType

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import metastep as ms
from metastep.step.fingerprint import Fingerprint

CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "a mode": lambda net: net[1].eval(),
    "an attribute": lambda net: setattr(net[1], "eps", 0.1),
    "a new attribute": lambda net: setattr(net[1], "scale", 0.1),
    "a function": lambda net: setattr(net[1], "relu", torch.tanh),
    "a part": lambda net: net.__setitem__(2, nn.Tanh()),
    "a part of a part": lambda net: net[3].__setitem__(0, nn.Linear(2, 2)),
    "one part more": lambda net: net.append(nn.ReLU()),
    "a hook": lambda net: net[0].register_forward_hook(lambda *of: None),
    "a precision": lambda net: net.double(),
    "a forward of its own": lambda net: setattr(net[0], "forward", MethodType(lambda part, x: x, net[0])),
    "a frozen parameter": lambda net: net[1].weight.requires_grad_(False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: str) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU(), nn.Sequential(nn.Linear(2, 2)))
    read = Fingerprint(net)
    before = read()
    with torch.no_grad():
        net[0].weight.mul_(2)  # type: ignore[union-attr, operator]
    assert read() == before == Fingerprint(net)()
    CHANGES[change](net)
    after = read()
    assert after != before
    assert read() == after == Fingerprint(net)()
    hash(after)


def test_a_part_that_came_later_is_read_too() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    read = Fingerprint(net)
    net.append(nn.BatchNorm1d(2))
    before = read()
    net[1].eval()
    assert read() != before


def pictures() -> tuple[nn.Sequential, ms.Task]:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), norm, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 5))
    batch = torch.randn(4, 5, 3, 4, 4), torch.arange(5).repeat(4, 1)
    return net, ms.Task(batch, batch)


def doubling(net: nn.Sequential) -> MethodType:
    return MethodType(lambda net, x: 2 * nn.Sequential.forward(net, x), net)


STALE: dict[str, Callable[[nn.Sequential, nn.CrossEntropyLoss], object]] = {
    "a method": lambda net, loss: setattr(
        net, "forward", MethodType(lambda net, x: 2 * nn.Sequential.forward(net, x), net)
    ),
    "a frozen parameter": lambda net, loss: net[0].weight.requires_grad_(False),
    "an option of the loss": lambda net, loss: setattr(loss, "label_smoothing", 0.5),
}


@pytest.mark.parametrize("change", STALE)
def test_derivatives_by_hand_end_where_the_net_is_changed_after_a_call(change: str) -> None:
    (net, tasks), loss = pictures(), nn.CrossEntropyLoss()
    gradient = ms.MetaGradient(ms.few_shot(net, loss), ms.MAML(), ms.SGD(lr=0.1), steps=2)
    assert gradient(net, tasks).grad.keys() == dict(net.named_parameters()).keys()
    assert gradient.path.startswith("derivatives by hand")
    STALE[change](net, loss)
    found = gradient(ms.parameters(net), tasks)
    fresh = ms.MetaGradient(gradient.problem, ms.methods.Reference(), ms.SGD(lr=0.1), steps=2)
    expected = fresh(ms.parameters(net), tasks)
    assert gradient.path.startswith("autograd")
    torch.testing.assert_close(found.loss, expected.loss)
    assert found.grad.keys() == expected.grad.keys()


def test_a_net_that_is_no_chain_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net, tasks = pictures()
    net[2] = nn.Tanh()
    gradient = ms.MetaGradient(ms.few_shot(net, cross_entropy), ms.MAML(), ms.SGD(lr=0.1), steps=2)
    gradient(net, tasks)
    path = gradient.path
    monkeypatch.setattr("metastep.step.chain.serving.chain_of", None)
    gradient(net, tasks)
    assert gradient.path == path
