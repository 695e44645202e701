"""Validation and evaluation by hand are those that are mapped; where they cannot be by hand, they are mapped."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from metastep.core.windows import Task
from metastep.train.config import FewShot, Test as JudgeConfig, Validation
from metastep.train.fewshot import evaluate as judging
from metastep.train.fewshot.evaluate import Sampler, judge
from metastep.train.fewshot.learner import Learner
from metastep.train.loop import train
from tests.train.fewshot.helpers import CARRIED, METHODS, TINY, named_method, stripes, tiny

BY_HAND = {"maml", "multi_step", "truncated", "fo_maml", "reptile", "imaml"}


def configured(method: str, **changes: object) -> FewShot:
    inner = replace(TINY.inner, momentum=0.0 if method in ("meta_sgd", "maml_pp") else 0.9, lr=0.05)
    window = {"window": 2} if method in ("multi_step", "truncated") else {}
    return replace(TINY, method=named_method(method, **window), inner=inner, precision="float64", **changes)  # type: ignore[arg-type]


WAYS = {
    "as trained": JudgeConfig(),
    "in mini-batches": JudgeConfig(shots=2, steps=5, batch=3),
    "in shuffled mini-batches": JudgeConfig(shots=2, steps=5, batch=4),
}


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[Learner]:
    """Those that were mapped"""
    found: list[Learner] = []
    kept = judging.mapped
    monkeypatch.setattr(judging, "mapped", lambda learner, look: found.append(learner) or kept(learner, look))
    return found


CONFIGS = {method: configured(method) for method in METHODS}


@pytest.mark.parametrize("look", ["at the end", "after each window"])
@pytest.mark.parametrize("test", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    "config", [*CONFIGS.values(), replace(CARRIED, precision="float64")], ids=[*CONFIGS, "carried"]
)
def test_by_hand_is_mapped(
    config: FewShot, test: JudgeConfig, look: judging.Look, used: list[Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Learner.fresh(replace(config, test=test, chunk_size=3))
    sampler = Sampler.of(stripes(split="test"), learner.config.test_episodes, 0, "cpu", torch.float64)
    found = judge(learner, sampler, 7, look)
    assert len(used) == (0 if config.method_name in BY_HAND else 1)
    monkeypatch.setattr(judging, "of_many", judging.mapped)
    expected = judge(learner, sampler, 7, look)
    assert found.loss.shape == (7, len(learner.loop.lengths) + 1 if look == "after each window" else 1)
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.accuracy, expected.accuracy, rtol=1e-6, atol=0)


def test_validation_in_training_takes_as_many_at_a_time_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    draw = Sampler.__call__

    def counting(self: Sampler, k: int, tasks: int, first: int = 0) -> Task:
        drawn.append(tasks)
        return draw(self, k, tasks, first)

    config = replace(tiny(iterations=4), validation=Validation(every=4, episodes=5))
    for size, sizes in ((2, [2, 2, 1]), (None, [4, 1])):
        with monkeypatch.context() as patched:
            patched.setattr(Sampler, "__call__", counting)
            train(replace(config, chunk_size=size), tmp_path / str(size))
        assert drawn[-len(sizes) :] == sizes
