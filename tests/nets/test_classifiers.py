"""Sources and targets of transfer: shapes, sizes, names, and weights from files."""

import os
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from metastep.core.registry import names
from metastep.errors import MetastepError
from metastep.nets.deep import VGG, ResNet, ResNet18, ResNet32, ResNet34
from metastep.nets.registry import load_net, load_weights

CLASSIFIERS = [name for name in names("net") if name.startswith(("resnet", "vgg"))]
SIZES = {"resnet18": 64, "resnet34": 64}
CHECKPOINT = Path(os.environ.get("METASTEP_DATA", "."), "tinyimagenet_resnet32.safetensors")


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(
    ("net", "parameters"),
    [
        (ResNet32(200), 479_272),
        (VGG(100), 9_277_284),
        (VGG(10), 9_231_114),
        (ResNet18(200), 11_279_112),
        (ResNet18(67), 11_210_883),
        (ResNet18(40), 11_197_032),
        (ResNet18(120), 11_238_072),
        (ResNet34(1000), 21_797_672),
    ],
)
def test_published_sizes(net: nn.Module, parameters: int) -> None:
    assert count(net) == parameters


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_net_classifies_and_has_its_taps(name: str, channels: int) -> None:
    size = SIZES.get(name, 32)
    net = load_net(name)(ways=7, channels=channels, size=size)
    seen: list[tuple[int, ...]] = []
    for tap in net.taps:  # type: ignore[union-attr]
        net.get_submodule(tap).register_forward_hook(lambda part, x, out: seen.append(tuple(out.shape)))
    assert net(torch.randn(2, channels, size, size)).shape == (2, 7)
    assert len(seen) == len(net.taps)  # type: ignore[arg-type]
    assert all(len(shape) == 4 for shape in seen)


@pytest.mark.parametrize(("name", "size"), [("resnet8", 8), ("resnet8", 28), ("vgg4", 8), ("vgg4", 28)])
def test_small_nets_take_small_pictures(name: str, size: int) -> None:
    assert load_net(name)(ways=10, channels=1, size=size)(torch.randn(2, 1, size, size)).shape == (2, 10)


@pytest.mark.parametrize("training", [True, False])
def test_a_bias_before_batch_norm_has_a_gradient_where_it_matters(training: bool) -> None:
    net, x = VGG(2, size=4, stages=((3,), (2,))).double(), torch.randn(5, 3, 4, 4, dtype=torch.float64)
    plain = deepcopy(net)
    plain.features[0] = nn.Conv2d(3, 3, 3, padding=1).double()
    plain.load_state_dict(net.state_dict())
    ours, theirs = (gradients(each.train(training), x) for each in (net, plain))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    assert bool(theirs["features.0.bias"].abs().max() < 1e-12) is training
    assert (not ours["features.0.bias"].any()) is training


def gradients(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    params = dict(net.named_parameters())
    found = torch.autograd.grad(net(x).sin().sum(), list(params.values()), materialize_grads=True)
    return dict(zip(params, found, strict=True))


def test_vgg_features_enter_the_poolings() -> None:
    net = VGG(10)
    parts = dict(net.features.named_children())
    for tap in net.taps:
        index = int(tap.removeprefix("features."))
        assert isinstance(parts[str(index)], nn.ReLU)
        assert isinstance(parts[str(index + 1)], nn.MaxPool2d)
    assert len(net.taps) == 5
    with pytest.raises(MetastepError, match=r"8×8 are too small for 5 max-poolings, which need 32×32"):
        VGG(10, size=8)


def test_starts_as_published() -> None:
    torch.manual_seed(0)
    for net in (VGG(10), ResNet18(10)):
        for part in net.modules():
            if isinstance(part, nn.Conv2d) and part.weight.numel() > 50_000:
                fan_out = part.out_channels * part.kernel_size[0] ** 2
                assert part.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.02)
    head = VGG(100).fc
    assert head.weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert not head.bias.any()


def test_torchvision_names() -> None:
    """What the published files of ImageNet weights are made of"""
    names = set(ResNet34(1000).state_dict())
    blocks = [f"layer{i}.{j}" for i, n in enumerate((3, 4, 6, 3), 1) for j in range(n)]
    norms = ["bn1", *(f"{b}.bn{k}" for b in blocks for k in (1, 2)), *(f"layer{i}.0.downsample.1" for i in (2, 3, 4))]
    slots = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    convolutions = ["conv1", *(f"{b}.conv{k}" for b in blocks for k in (1, 2))]
    expected = {f"{norm}.{slot}" for norm in norms for slot in slots} | {f"{c}.weight" for c in convolutions}
    expected |= {f"layer{i}.0.downsample.0.weight" for i in (2, 3, 4)} | {"fc.weight", "fc.bias"}
    assert names == expected


def small() -> ResNet32:
    return ResNet32(4, blocks=1, width=2)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_go_to_a_file_and_back(suffix: str, tmp_path: Path) -> None:
    saved, path = small(), tmp_path / f"net{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(saved.state_dict(), path)
    net = load_weights(small(), path)
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), saved.state_dict().values(), strict=True))


def test_weights_of_2017_lack_a_counter(tmp_path: Path) -> None:
    stored = {k: v for k, v in small().state_dict().items() if not k.endswith("num_batches_tracked")}
    torch.save(stored, tmp_path / "old.pth")
    net = load_weights(small(), tmp_path / "old.pth")
    assert torch.equal(net.state_dict()["conv1.weight"], stored["conv1.weight"])


def test_a_head_can_be_left_out(tmp_path: Path) -> None:
    saved, net, path = small(), ResNet32(9, blocks=1, width=2), tmp_path / "net.safetensors"
    save_file(saved.state_dict(), path)
    head = net.fc.weight.clone()
    load_weights(net, path, leave_out=["fc"])
    assert torch.equal(net.fc.weight, head)
    assert torch.equal(net.conv1.weight, saved.conv1.weight)
    with pytest.raises(MetastepError, match=r"'fc.bias' is \(4,\) in the file and \(9,\) in the net.*leave"):
        load_weights(net, path)


def test_weights_that_cannot_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    save_file(small().state_dict(), path)
    with pytest.raises(MetastepError, match=r"does not fit ResNet32: it has no 'blocks2.0.conv1.weight'"):
        load_weights(ResNet32(4, blocks=2, width=2), path)
    with pytest.raises(MetastepError, match=r"does not fit ResNet: it has no 'layer1.0.conv1.weight'"):
        load_weights(ResNet(4), path)
    with pytest.raises(MetastepError, match="there is no weights file"):
        load_weights(small(), tmp_path / "absent.pth")
    for name in ("broken.safetensors", "broken.pth"):
        (tmp_path / name).write_bytes(b"these are no weights")
        with pytest.raises(MetastepError, match=f"{name} cannot be read"):
            load_weights(small(), tmp_path / name)
    torch.save({"epoch": 3}, tmp_path / "run.pth")
    with pytest.raises(MetastepError, match="does not hold tensors by name"):
        load_weights(small(), tmp_path / "run.pth")
    torch.save({**small().state_dict(), "extra": torch.ones(1)}, tmp_path / "more.pth")
    with pytest.raises(MetastepError, match="the net has no 'extra'"):
        load_weights(small(), tmp_path / "more.pth")


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(MetastepError, match="Did you mean 'resnet32'"):
        load_net("resnet_32")


@pytest.mark.skipif(not CHECKPOINT.is_file(), reason="METASTEP_DATA has no tinyimagenet_resnet32.safetensors")
def test_the_tinyimagenet_checkpoint_loads() -> None:
    from safetensors.torch import load_file

    net = ResNet32(200)
    net.load_state_dict(load_file(CHECKPOINT), strict=True)
    own = load_weights(ResNet32(200), CHECKPOINT)
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), own.state_dict().values(), strict=True))
