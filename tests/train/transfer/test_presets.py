"""Every preset is what the paper's tables say, and can be built."""

from pathlib import Path

import pytest
import torch

from metastep.data.registry import data_sets
from metastep.nets.registry import load_net
from metastep.train import presets
from metastep.train.config import Transfer
from metastep.train.transfer.building import layers_of
from metastep.train.validated import from_plain, to_plain
from study.targets import ABLATIONS, METHODS, OPTIMIZERS, TARGETS

PRESETS = presets.transfer()


def test_every_cell_of_the_paper_and_its_ablations() -> None:
    cells = {f"{t}-{o}-{m}" for t in TARGETS for o in OPTIMIZERS for m in METHODS}
    cells |= {f"{t}-{o}-{m}" for t in ("bird", "stl10") for o in OPTIMIZERS for m in ABLATIONS}
    assert cells == {name for name in PRESETS if not name.startswith("digits")}
    assert len(TARGETS) == 6


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_built(name: str, tmp_path: Path) -> None:
    config = PRESETS[name]
    assert from_plain(Transfer, to_plain(config)) == config
    assert config.data.name in data_sets()
    with torch.device("meta"):
        chosen = {config.source.net: config.source.layers, config.net.name: config.net.layers}
        nets = {name: load_net(name)(ways=7, channels=3, size=config.data.size) for name in chosen}
    for name, layers in chosen.items():
        known = dict(nets[name].named_modules())
        assert all(layer in known for layer in layers_of(nets[name], name, layers, "net"))


@pytest.mark.parametrize("target", TARGETS)
def test_the_papers_numbers(target: str) -> None:
    small = target in ("cifar100", "stl10")
    for optimizer in OPTIMIZERS:
        for method in METHODS:
            config = PRESETS[f"{target}-{optimizer}-{method}"]
            assert (config.epochs, config.batch) == (200, 128 if small else 64)
            assert (config.outer.lr, config.outer.weight_decay) == (1e-3 if small else 1e-4, 1e-4)
            assert (config.source.net, config.net.name) == (("resnet32", "vgg9") if small else ("resnet34", "resnet18"))
            expected = ("sgd", 0.1) if optimizer == "sgd" or method == "scratch" else ("adam", 1e-3)
            assert (config.inner_name, config.inner.lr, config.inner.weight_decay) == (*expected, 1e-4)
            if method != "scratch":
                assert (config.steps, config.window, config.method.beta) == (2, 2 if method == "multistep" else 1, 0.5)
                assert config.products == (2 if method == "multistep" else 3)
    assert PRESETS[f"{target}-adam-scratch"] == PRESETS[f"{target}-sgd-scratch"]
