"""Every registered net builds, answers, learns, and says what its options are: a new one is tested by existing."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import metastep as ms
from metastep.core.options import options_of
from metastep.core.registry import named, names

GIVEN = ("ways", "channels", "size")
SIZES = {name: options_of(named("net", name))["size"].default for name in names("net")}
LARGE = 84  # pixels: a net for larger pictures is tried on these


def build(name: str, ways: int = 3) -> torch.nn.Module:
    torch.manual_seed(0)
    return ms.nets.build(name, ways=ways, channels=3, size=min(SIZES[name], LARGE))


@pytest.mark.parametrize("name", names("net"))
def test_a_net_answers_and_every_parameter_learns(name: str) -> None:
    net, size = build(name), min(SIZES[name], LARGE)
    answer = net(torch.randn(4, 3, size, size))
    assert answer.shape == (4, 3)
    cross_entropy(answer, torch.arange(4) % 3).backward()
    unmoved = [key for key, p in net.named_parameters() if p.grad is None]
    assert [key for key in unmoved if not key.endswith("bias")] == []  # BatchNorm may take a bias away again


@pytest.mark.parametrize("name", names("net"))
def test_its_first_values_are_a_function_of_the_seed(name: str) -> None:
    first, second = (build(name, ways=2).state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", names("net"))
def test_its_options_say_what_they_are(name: str) -> None:
    options = options_of(named("net", name))
    assert set(GIVEN) <= options.keys()
    assert [option.name for option in options.values() if not option.help] == []


@pytest.mark.filterwarnings("ignore:features.0.bias")  # a bias before a BatchNorm
@pytest.mark.parametrize("name", ["vgg4", "resnet8"])
def test_a_net_with_running_statistics_serves_few_shot_learning_too(name: str) -> None:
    net = ms.use_batch_statistics(build(name)).double()
    gradient = ms.MetaGradient(ms.few_shot(net, cross_entropy), ms.MultiStep(window=2), ms.SGD(lr=0.01), steps=4)
    batch = torch.randn(2, 6, 3, 32, 32, dtype=torch.float64), torch.arange(3).repeat(2, 2)
    tasks = ms.Task(batch, batch)
    exact = ms.MetaGradient(ms.few_shot(net, cross_entropy), ms.methods.Reference(window=2), ms.SGD(lr=0.01), steps=4)
    found, expected = gradient(net, tasks).grad, exact(net, tasks).grad
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-8, atol=1e-10)


def test_a_net_that_cannot_be_built_says_what_it_is_called_with() -> None:
    with pytest.raises(ms.MetastepError, match=r"net 'conv4' could not be built: .*'filter'.*called with ways, chan"):
        ms.nets.build("conv4", ways=2, channels=1, size=28, filter=3)
    with pytest.raises(ms.MetastepError, match=r"no net 'conv5'. Did you mean 'conv4'"):
        ms.nets.build("conv5", ways=2, channels=1, size=28)


def test_the_module_lists_what_it_has() -> None:
    assert all(getattr(ms.nets, name) is not None for name in ms.nets.__all__)
    assert set(ms.nets.__all__) <= set(dir(ms.nets))
    with pytest.raises(AttributeError, match="no attribute 'Conv5'"):
        _ = ms.nets.Conv5
