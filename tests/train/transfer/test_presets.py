"""Every preset is what the paper's tables say, and can be built."""

from pathlib import Path

import pytest
import torch

from metastep.cli.transfer_flags import FLAGS
from metastep.data.registry import data_sets
from metastep.errors import MetastepError
from metastep.nets.registry import load_net
from metastep.train.config import from_plain, to_plain
from metastep.train.transfer.building import layers_of, method_of
from metastep.train.transfer.config import TransferConfig
from metastep.train.transfer.presets import ABLATIONS, METHODS, OPTIMIZERS, PRESETS, TARGETS
from tests.train.transfer.train_helpers import TINY


def test_every_cell_of_the_paper_and_its_ablations() -> None:
    cells = {f"{t}-{o}-{m}" for t in TARGETS for o in OPTIMIZERS for m in METHODS}
    cells |= {f"{t}-{o}-{m}" for t in ("bird", "stl10") for o in OPTIMIZERS for m in ABLATIONS}
    assert cells == {name for name in PRESETS if not name.startswith("digits")}
    assert len(TARGETS) == 6


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_built(name: str, tmp_path: Path) -> None:
    config = PRESETS[name]
    assert from_plain(TransferConfig, to_plain(config)) == config
    assert config.data.name in data_sets()
    assert method_of(config).learns == config.learns_weights
    with torch.device("meta"):
        nets = {part.net: load_net(part.net)(ways=7, channels=3, size=config.data.size)
                for part in (config.source, config.target)}  # fmt: skip
    for part in ("source", "target"):
        chosen = getattr(config, part)
        names = dict(nets[chosen.net].named_modules())
        assert all(layer in names for layer in layers_of(nets[chosen.net], chosen.net, chosen.layers, part))


@pytest.mark.parametrize("target", TARGETS)
def test_the_papers_numbers(target: str) -> None:
    small = target in ("cifar100", "stl10")
    for optimizer in OPTIMIZERS:
        for method in METHODS:
            config = PRESETS[f"{target}-{optimizer}-{method}"]
            assert (config.epochs, config.data.batch) == (200, 128 if small else 64)
            assert (config.meta.lr, config.meta.weight_decay) == (1e-3 if small else 1e-4, 1e-4)
            assert (config.source.net, config.target.net) == (
                ("resnet32", "vgg9") if small else ("resnet34", "resnet18")
            )
            expected = ("sgd", 0.1) if optimizer == "sgd" or method == "scratch" else ("adam", 1e-3)
            assert (config.inner.optimizer, config.inner.lr, config.inner.weight_decay) == (*expected, 1e-4)
            if method != "scratch":
                assert (config.steps, config.window, config.beta) == (2, 2 if method == "multistep" else 1, 0.5)
                assert config.products == (2 if method == "multistep" else 3)
    assert PRESETS[f"{target}-adam-scratch"] == PRESETS[f"{target}-sgd-scratch"]


def test_every_field_has_a_flag_and_a_help() -> None:
    flags = FLAGS.all()
    assert len({flag.name for flag in flags}) == len(flags)
    assert {"target_data", "source_net", "source_weights", "source_layers", "pairs", "inner_lr"} <= {
        flag.name for flag in flags
    }
    own = FLAGS.applied(PRESETS["digits-sgd-multistep"], {"source_weights": "a.pth", "target_data": "folder:b"})
    assert (own.source.dataset, own.source.epochs, own.data.per_class) == (None, None, None)
    changed = FLAGS.applied(TINY, {"source_layers": "first,second", "pairs": "0-0,1-0", "steps": 3})
    assert (changed.source.layers, changed.method.pairs, changed.steps) == (("first", "second"), "0-0,1-0", 3)


def test_errors_speak_of_flags_and_leave_names_of_files_and_modules() -> None:
    said = "source.weights = /data.size/source.net: no 'source.net'. Set source.net, not source.net:Own (data.size)."
    with pytest.raises(MetastepError) as caught, FLAGS.spoken():
        raise MetastepError(said)
    spoken = "--source-weights = /data.size/source.net: no 'source.net'. Set --source-net, not source.net:Own (--size)."
    assert str(caught.value) == spoken
