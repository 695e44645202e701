"""`metastep train`, `study bench` and the README's snippet make updates by the same code, and tell the same path."""

from collections import Counter
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import metastep as ms
from metastep.core.trees import tree_leaves
from metastep.data.pictures import Pictures
from metastep.step import captured_update, update
from metastep.step.capture import Captured
from metastep.step.captured_update import CapturedUpdate
from metastep.step.ranks import ALONE
from metastep.step.update import EagerUpdate
from metastep.train.fewshot.job import FewShotJob, prepare
from study.bench.implementations import ours
from study.bench.workload import pictures
from tests.study.bench.helpers import CPU, tiny_case
from tests.train.fewshot.helpers import again

CASE = tiny_case(method="multi_step", window=2, precision="fp32")
UPDATES = 3


@pytest.fixture(params=[EagerUpdate, CapturedUpdate])
def calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """How often each `MetaStep` made an update in the one way that there is; the second as on a GPU"""
    if request.param is CapturedUpdate:
        monkeypatch.setattr(update, "why_not_captured", lambda *of: None)
        monkeypatch.setattr(captured_update, "unit", lambda step, device: Captured(step, again))
    counted, call = Counter[Any](), request.param.__call__

    def counting(self: Any, number: int, tasks: Any) -> Any:
        counted[self._step] += 1
        return call(self, number, tasks)

    monkeypatch.setattr(request.param, "__call__", counting)
    return counted


def of_training() -> FewShotJob:
    images, config = pictures(CASE, CPU), ours.config_of(CASE, CPU)
    job = prepare(config, Pictures.of_rows(images, tuple(map(str, range(len(images))))), None, ALONE)
    job.begin(0)
    return job


def of_the_snippet(job: FewShotJob) -> ms.MetaStep:
    """As the README has it, with the net and the numbers of the run"""
    net = deepcopy(job.learner.net)
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(job.learner.meta[name])
    problem = ms.few_shot(net, F.cross_entropy, {"accuracy": ms.accuracy})
    inner = ms.SGD(lr=0.01, momentum=0.9, weight_decay=1e-4)
    gradient = ms.MetaGradient(problem, ms.MultiStep(window=2), inner, steps=CASE.steps)
    return ms.MetaStep(gradient, net, torch.optim.Adam(net.parameters(), lr=1e-3))


def test_all_three_make_the_same_updates_by_the_same_code(calls: Counter[Any]) -> None:
    job, bench = of_training(), ours.step(CASE, CPU)
    assert isinstance(bench, ours.Trained)
    training, snippet = job.step, of_the_snippet(job)
    for k in range(UPDATES):
        training()
        bench()
        snippet(job.draw(k, CASE.tasks))
    assert calls == {training: UPDATES, bench._step: UPDATES, snippet: UPDATES}
    assert training.path == bench.path == snippet.path
    assert training.path.startswith("derivatives by hand, in PyTorch (float32); ")
    for step in (training, bench._step, snippet):
        step.settle()
    leaves = [tree_leaves(step.meta) for step in (training, bench._step, snippet)]
    for run, benched, by_hand in zip(*leaves, strict=True):
        assert torch.equal(run, benched)
        assert torch.equal(run, by_hand)
