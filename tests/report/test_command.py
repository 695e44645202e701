"""The command that makes a run again really gives its configuration."""

import shlex

import pytest
from hypothesis import given, settings, strategies as st

from metastep.cli.train import begun_from
from metastep.report.reported import FOUND, again, changes, flat
from metastep.train import presets
from metastep.train.config import FewShot, Transfer
from metastep.train.presets import overridden
from metastep.train.validated import to_plain

NAMES = sorted(presets.known())
OTHERS = [
    ["steps=4,2,1", "method=maml", "inner=adam", "inner.betas=0.5,0.9"],
    ["method=imaml", "method.solver=conjugate_gradient", "data.name=folder:my photos", "data.ways=2", "test.steps=3"],
    ["method=maml_pp", "net.filters=8", "outer.clip=1e-3", "start=omniglot-5w1s", "data.test=glyphs"],
]


def told(config: FewShot | Transfer) -> dict[str, object]:
    return {key: value for key, value in flat(to_plain(config)) if key not in FOUND}


@given(base=st.sampled_from(NAMES), name=st.sampled_from(NAMES))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_changes_make_one_preset_of_another(base: str, name: str) -> None:
    first, second = presets.preset(base), presets.preset(name)
    if type(first) is type(second):
        assert told(overridden(first, changes(first, second))) == told(second)


@pytest.mark.parametrize("typed", OTHERS)
def test_the_command_makes_the_same_run(typed: list[str]) -> None:
    config = overridden(presets.few_shot()["glyphs-5w1s-multistep4"], typed)
    train, evaluate = (shlex.split(line) for line in again(config, "a/mine"))
    assert train[:2] == ["metastep", "train"]
    assert train[-2:] == ["--out", "runs/mine-again"]
    assert evaluate[:3] == ["metastep", "evaluate", "runs/mine-again"]
    _, base = begun_from(train[2], [])
    assert told(overridden(base, [word for word in train[3:-2] if "=" in word])) == told(config)


def test_a_preset_itself_needs_no_changes() -> None:
    config = presets.preset("omniglot-5w1s-multistep4")
    assert again(config, "x")[0] == "metastep train omniglot-5w1s-multistep4 --data DATA --out runs/x-again"
