"""What was prepared for a module is prepared again where the module has changed, and only there."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

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
