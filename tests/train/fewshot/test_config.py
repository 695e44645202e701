import re
from dataclasses import replace
from pathlib import Path

import pytest

from metastep.cli.train_flags import FLAGS, with_flags
from metastep.errors import MetastepError
from metastep.train.config import read_config, write_config
from metastep.train.fewshot.config import (
    METHOD_OPTIONS,
    DataConfig,
    InnerConfig,
    MethodConfig,
    OuterConfig,
    TestConfig,
    TrainConfig,
    ValidationConfig,
)
from metastep.train.fewshot.presets import PRESETS


def carried(inner: InnerConfig | None = None, outer: OuterConfig | None = None) -> TrainConfig:
    method = MethodConfig("reptile", carried=True)
    return TrainConfig(inner=inner or InnerConfig("adam"), method=method, outer=outer or OuterConfig("sgd", 1.0))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_the_same_after_a_file(name: str, tmp_path: Path) -> None:
    write_config(tmp_path / "config.json", PRESETS[name])
    assert read_config(tmp_path / "config.json", TrainConfig) == PRESETS[name]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MethodConfig("maml", window=4), "method.window = 4 is no option of maml"),
        (lambda: MethodConfig("fo_maml", samples=4), "method.samples = 4 is no option of fo_maml"),
        (lambda: MethodConfig("truncated"), "method.depth is missing"),
        (lambda: InnerConfig("adam", momentum=0.9), "inner.momentum = 0.9 is no option of adam"),
        (lambda: InnerConfig("sgd", betas=(0.0, 0.9)), "inner.betas"),
        (lambda: OuterConfig("sgd", eps=1e-3), "outer.eps"),
        (lambda: InnerConfig(lr=-1.0), "inner.lr = -1.0"),
        (lambda: InnerConfig(batch=0), "inner.batch = 0"),
        (lambda: OuterConfig(tasks=0), "outer.tasks = 0"),
        (lambda: OuterConfig(clip=0.0), "outer.clip = 0.0"),
        (lambda: TrainConfig(DataConfig(ways=0)), "ways = 0"),
        (lambda: TrainConfig(inner=InnerConfig(steps=0)), "steps = 0"),
        (lambda: TrainConfig(inner=InnerConfig(steps=(2, 2)), method=MethodConfig(window=2)), "leave window"),
        (lambda: TrainConfig(DataConfig(split="trainval")), "set validation.every to 0"),
        (lambda: TrainConfig(seed=-1), "seed = -1"),
        (lambda: ValidationConfig(episodes=1), "validation.episodes = 1"),
        (lambda: MethodConfig("maml", carried=True), "method.carried = True is no option of maml"),
        (lambda: carried(InnerConfig("sgd")), "inner.optimizer = sgd: it has no memory"),
        (lambda: carried(outer=OuterConfig("adam")), "outer.optimizer = adam: it must be sgd"),
        (lambda: carried(outer=OuterConfig("sgd", 1.5)), "outer.lr = 1.5: it must be at most 1"),
    ],
)
def test_what_cannot_work_is_refused(make: object, message: str) -> None:
    with pytest.raises(MetastepError, match=re.escape(message)):
        make()  # type: ignore[operator]


def test_judging_may_differ_from_training() -> None:
    config = TrainConfig(DataConfig(shots=10), test=TestConfig(shots=1, steps=50, batch=5))
    assert (config.train_episodes.shots, config.test_episodes.shots) == (10, 1)
    assert (config.as_tested().inner.steps, config.as_tested().inner.batch) == (50, 5)
    assert TrainConfig().as_tested() == TrainConfig()


def test_every_field_has_a_flag_with_a_name_of_its_own_and_help() -> None:
    flags = FLAGS.all()
    assert len({flag.name for flag in flags}) == len(flags)
    assert all(flag.help.endswith(".") for flag in flags)


def test_flags_change_a_preset() -> None:
    config = with_flags(PRESETS["omniglot-5w1s-multistep4"], {"steps": "4,2", "window": 1, "inner_lr": 0.1, "seed": 3})
    assert (config.inner.steps, config.inner.lr, config.seed) == ((4, 2), 0.1, 3)
    assert with_flags(config, {"steps": "6"}).inner.steps == 6
    assert with_flags(config, {"inner_optimizer": "adam", "inner_betas": "0,0.9"}).inner.betas == (0.0, 0.9)


@pytest.mark.parametrize("method", METHOD_OPTIONS)
def test_another_method_does_not_inherit_options(method: str) -> None:
    config = with_flags(
        PRESETS["omniglot-5w1s-multistep4"], {"method": method, **({"depth": 2} if method == "truncated" else {})}
    )
    assert config.method == replace(MethodConfig(depth=config.method.depth, name=config.method.name))


def test_errors_of_flags_name_flags() -> None:
    with pytest.raises(MetastepError, match=r"--inner-momentum = 0\.5 is no option of adam"):
        with_flags(TrainConfig(), {"inner_optimizer": "adam", "inner_momentum": 0.5})
    with pytest.raises(MetastepError, match="--steps = 'a,b': give numbers"):
        with_flags(TrainConfig(), {"steps": "a,b"})
