"""Validation by hand is that which is mapped; where it cannot be by hand, it is mapped."""

from dataclasses import replace

import pytest
import torch

from metastep.fewshot import validation
from metastep.fewshot.config import METHOD_OPTIONS, MethodConfig, MethodName, TrainConfig
from metastep.fewshot.config import TestConfig as JudgeConfig
from metastep.fewshot.learner import Learner
from metastep.fewshot.sampling import Sampler
from metastep.fewshot.validation import judge
from tests.fewshot.helpers import TINY, stripes

BY_HAND = {"maml", "multi_step", "truncated", "fo_maml", "reptile", "imaml"}


def configured(method: MethodName, **changes: object) -> TrainConfig:
    inner = replace(TINY.inner, momentum=None if method in ("meta_sgd", "maml_pp") else 0.9, lr=0.05)
    window = 2 if method in ("multi_step", "truncated") else None
    chosen = MethodConfig(method, window=window, depth=1 if method == "truncated" else None)
    return replace(TINY, method=chosen, inner=inner, precision="float64", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("test", [JudgeConfig(), JudgeConfig(shots=2, steps=5, batch=3)], ids=["as trained", "in mini-batches"])
@pytest.mark.parametrize("method", METHOD_OPTIONS)
def test_by_hand_is_mapped(method: MethodName, test: JudgeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner.fresh(configured(method, test=test))
    sampler = Sampler.of(stripes(split="test"), learner.config.test_episodes, 0, "cpu", torch.float64)
    used = []
    monkeypatch.setattr(validation, "mapped", lambda learner, kept=validation.mapped: used.append(1) or kept(learner))
    found = judge(learner, sampler, 7, chunk_size=3)
    assert bool(used) is (method not in BY_HAND)
    monkeypatch.setattr(validation, "of_many", validation.mapped)
    expected = judge(learner, sampler, 7, chunk_size=3)
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-9, atol=1e-9)
    assert torch.equal(found.accuracy, expected.accuracy)
