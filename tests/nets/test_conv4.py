"""Nets: every entry of the registry, and what tells the published variants apart."""

import sys

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import metastep
from metastep.core.registry import named, names
from metastep.core.tasks import stack
from metastep.errors import MetastepError
from metastep.nets.conv4 import Conv4, SamePad, ShiftNorm
from metastep.nets.registry import load_net
from metastep.step.mapped import mapped

# name: parameters at 5 and at 20 ways, and what the head sees; the shifts of Finn's BatchNorm are counted apart
TABLE = {
    "conv4": (113_221, 117_076, 256),
    "finn_omniglot": (111_749 + 256, 112_724 + 256, 64),
    "finn_mini": (32_645 + 128, None, 800),
    "dragen_omniglot": (91_781, 92_756, 64),
    "dragen_mini": (32_901, None, 800),
    "reptile_omniglot": (113_221, 117_076, 256),
    "reptile_mini": (34_661, None, 1_152),
    "imaml_omniglot": (113_221, 117_076, 256),
}
HEADS = ("default", "zero", "normal", "xavier", "kaiming")


NETS = {name: named("net", name) for name in TABLE}


def picture_shape(name):
    return (3, 84, 84) if name.endswith("mini") else (1, 28, 28)


def count(net):
    return sum(p.numel() for p in net.parameters())


def test_every_variant_is_in_the_table():
    variants = [name for name in names("net") if getattr(named("net", name), "func", named("net", name)) is Conv4]
    assert variants == list(TABLE)


@pytest.mark.parametrize("name", NETS)
def test_parameter_counts_and_shapes_are_the_published_ones(name):
    five, twenty, seen = TABLE[name]
    net = NETS[name](ways=5)
    assert count(net) == five
    assert net.head.in_features == seen
    assert twenty is None or count(NETS[name](ways=20)) == twenty
    assert net(torch.rand(3, *picture_shape(name))).shape == (3, 5)


@pytest.mark.parametrize("name", NETS)
def test_pictures_of_other_sizes_and_colours(name):
    net = NETS[name](ways=4, channels=2, size=50, filters=8)
    assert net(torch.rand(3, 2, 50, 50)).shape == (3, 4)


@pytest.mark.parametrize("name", NETS)
def test_a_seed_decides_how_a_net_starts_and_the_head_does_not_change_the_blocks(name):
    def built(head_init="default"):
        torch.manual_seed(1)
        return NETS[name](ways=5, filters=4, head_init=head_init)

    first, second, zero = built().state_dict(), built().state_dict(), built("zero").state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert all(torch.equal(first[key], zero[key]) for key in first if not key.startswith("head"))
    assert not zero["head.weight"].any()
    assert not zero["head.bias"].any()
    assert first["head.weight"].any()


@pytest.mark.parametrize("name", NETS)
def test_the_batch_at_hand_is_normalised_in_training_and_in_testing(name):
    net, x = NETS[name](ways=5, filters=4), torch.rand(4, *picture_shape(name))
    assert not list(net.buffers())
    assert torch.equal(net.train()(x), net.eval()(x))
    assert not torch.allclose(net(x)[:2], net(x[:2]), atol=1e-4)


@pytest.mark.parametrize("name", NETS)
def test_meta_gradients_are_exact(name):
    """The sweep over vmapped tasks against autograd through the unroll, task by task."""
    torch.manual_seed(0)
    size = 46 if name == "dragen_mini" else 28  # the least that its four blocks need
    net = NETS[name](ways=2, channels=1, filters=2, size=size, head_init="normal").double()
    problem = metastep.few_shot(net, cross_entropy)
    inner = metastep.SGD(lr=0.1, momentum=0.9)
    x, y = torch.rand(2, 2, 4, 1, size, size, dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    tasks = [metastep.Task((x[i, 0], y), (x[i, 1], y)) for i in range(2)]
    meta = metastep.parameters(net)
    maml, reference = metastep.MAML(), metastep.methods.Reference()
    swept = mapped(maml, maml.loop(problem, inner, 2), None)(meta, stack(tasks))
    unrolled = [metastep.MetaGradient(problem, reference, inner, steps=2).estimator(meta, task).grad for task in tasks]
    for key, gradient in swept.grad.items():
        torch.testing.assert_close(gradient, (unrolled[0][key] + unrolled[1][key]) / 2, rtol=1e-7, atol=1e-10)
    assert any(gradient.abs().max() > 1e-6 for gradient in swept.grad.values())


# How they start


def test_published_initialisations():
    torch.manual_seed(0)
    finn = NETS["finn_omniglot"](ways=20)
    conv = finn.blocks[1][1]
    bound = (6 / (9 * 64 + 9 * 64)) ** 0.5
    assert 0.98 * bound < conv.weight.abs().max() <= bound
    assert not conv.bias.any()
    assert abs(finn.head.weight.std() - 1) < 0.05
    dragen = NETS["dragen_omniglot"](ways=20)
    assert abs(dragen.blocks[1][0].weight.std() / (2 / (9 * 64)) ** 0.5 - 1) < 0.05
    assert abs(dragen.head.weight.std() / (2 / 64) ** 0.5 - 1) < 0.05
    imaml = NETS["imaml_omniglot"](ways=20)
    assert 0.98 * 1.73 * bound < imaml.blocks[1][1].weight.abs().max() <= 1.73 * bound
    assert 0 <= imaml.head.bias.min() < imaml.head.bias.max() <= 0.05
    reptile = NETS["reptile_mini"](ways=5)
    assert reptile.head.weight.abs().max() <= (6 / (1152 + 5)) ** 0.5


@pytest.mark.parametrize("head_init", HEADS)
def test_heads_start_as_asked(head_init):
    head = Conv4(ways=20, head_init=head_init).head
    expected = {
        "default": (1 / (3 * 256)) ** 0.5, "zero": 0.0, "normal": 1.0,
        "xavier": (2 / (256 + 20)) ** 0.5, "kaiming": (2 / 256) ** 0.5,
    }[head_init]  # fmt: skip
    assert head.weight.std().item() == pytest.approx(expected, rel=0.05)
    assert head.bias.any() == (head_init == "default")


# What they are built of


def test_same_padding_samples_where_tensorflow_does():
    """A kernel that picks its centre reads pixels 1, 3, 5 of an even row, and 0, 2, 4 of an odd one."""
    conv = nn.Conv2d(1, 1, 3, stride=2, bias=False)
    with torch.no_grad():
        conv.weight.zero_()[..., 1, 1] = 1
    for side, picked in ((6, [1.0, 3.0, 5.0]), (5, [0.0, 2.0, 4.0])):
        row = torch.arange(float(side)).expand(1, 1, side, side)
        assert conv(SamePad()(row))[0, 0, 0].tolist() == picked
        assert conv(SamePad()(row.mT))[0, 0, :, 0].tolist() == picked


def test_finns_norm_shifts_and_does_not_scale():
    norm, x = ShiftNorm(3, eps=1e-3), 5 + 2 * torch.randn(4, 3, 6, 6)
    assert [name for name, _ in norm.named_parameters()] == ["shift"]
    plain = nn.BatchNorm2d(3, eps=1e-3, affine=False, track_running_stats=False)(x)
    nn.init.constant_(norm.shift, 0.5)
    torch.testing.assert_close(norm(x), plain + 0.5)


def test_finns_shifts_can_be_held_in_the_inner_loop():
    net = NETS["finn_omniglot"](ways=2, filters=4)
    problem = metastep.problems.adapt_only(metastep.few_shot(net, cross_entropy), lambda name: "shift" not in name)
    x, y = torch.rand(4, 1, 28, 28), torch.tensor([0, 0, 1, 1])
    meta, task = metastep.parameters(net), metastep.Task((x, y), (x, y))
    assert not any("shift" in name for name in problem.start(meta, task))
    gradient = metastep.MetaGradient(problem, metastep.MAML(), metastep.SGD(lr=0.1), steps=1)(meta, [task]).grad
    assert all(gradient[name].any() for name in meta if "shift" in name)


# Nets by name


def test_names_and_import_paths(tmp_path, monkeypatch):
    (tmp_path / "users_nets.py").write_text(
        "from torch import nn\n\ndef tiny(ways, channels, size):\n    return nn.Linear(channels, ways)\n\nnumber = 3\n"
    )
    (tmp_path / "users_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_net("conv4") is Conv4
    assert load_net("users_nets:tiny")(ways=2, channels=3, size=28).out_features == 2
    for path, message in {
        "users_nets:huge": "'huge' in 'users_nets' does not exist",
        "users_nets:number": "is not callable",
        "users_broken:net": "importing 'users_broken' failed with ZeroDivisionError: division by zero",
        "users_missing:net": "there is no module 'users_missing'",
        ":net": "importing '' failed",
    }.items():
        with pytest.raises(MetastepError, match=message):
            load_net(path)


def test_an_unknown_name_imports_nothing_and_suggests(monkeypatch):
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with pytest.raises(MetastepError, match=r"there is no net 'this'\. Choose one of conv4"):
        load_net("this")
    assert "this" not in sys.modules
    with pytest.raises(MetastepError, match="Did you mean 'finn_omniglot'"):
        load_net("fin_omniglot")


def test_unusable_arguments_are_refused():
    with pytest.raises(MetastepError, match="28×28 are too small"):
        NETS["dragen_mini"](ways=5, size=28)
    with pytest.raises(MetastepError, match="head_init = 'ones': choose one of default, zero"):
        Conv4(ways=5, head_init="ones")
    with pytest.raises(MetastepError, match="ways = 0"):
        Conv4(ways=0)
