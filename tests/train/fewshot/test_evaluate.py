"""Evaluation: its numbers, the same episodes for all, its file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import metastep as ms
from metastep.errors import MetastepError
from metastep.report.collect import ask_learner
from metastep.train.config import Net
from metastep.train.evaluate import OnEpisodes, paired_difference, read_evaluations, save
from metastep.train.fewshot.evaluate import Request, Sampler, evaluate, judge
from metastep.train.fewshot.learner import Learner
from metastep.train.io import RunError
from metastep.train.schema import EVALUATION_SEED
from tests.train.fewshot.helpers import METHODS, SIZE, TINY, named_method, stripes
from tests.train.fewshot.use_helpers import fresh

FEW = Request(episodes=7)


def timeless(evaluation: OnEpisodes) -> OnEpisodes:
    return replace(evaluation, seconds=0.0)


def test_the_interval_is_that_of_few_shot_papers() -> None:
    result = evaluate(fresh(), FEW)
    accuracies = np.array(result.accuracies)
    assert len(accuracies) == 7
    assert set(np.round(accuracies * 6 / 100, 3)) <= set(range(7))  # 6 queries
    assert result.accuracy == pytest.approx(accuracies.mean(), abs=1e-3)
    assert result.interval == pytest.approx(1.96 * accuracies.std() / np.sqrt(7), abs=1e-3)
    assert (result.by_step[-1].accuracy, result.by_step[-1].interval) == (result.accuracy, result.interval)


def test_it_agrees_with_validation_on_the_same_episodes() -> None:
    learner = fresh()
    sampler = Sampler.of(stripes(split="test"), TINY.test_episodes, EVALUATION_SEED, "cpu", torch.float32)
    judged = judge(learner, sampler, 7)
    assert evaluate(learner, FEW).accuracies == pytest.approx((100 * judged.accuracy[:, -1]).tolist(), abs=1e-3)


def test_steps_are_those_where_a_gradient_is_new() -> None:
    def steps(request: Request) -> list[int]:
        return [score.step for score in evaluate(fresh(), request).by_step]

    assert steps(FEW) == [0, 2, 4]
    assert steps(replace(FEW, exact_steps=True)) == [0, 1, 2, 3, 4]
    assert steps(replace(FEW, steps=5)) == [0, 2, 4, 5]
    assert steps(replace(FEW, steps=(5, 1, 1))) == [0, 5, 6, 7]
    assert steps(replace(FEW, steps=(5, 1), exact_steps=True)) == list(range(7))


def test_exact_steps_are_those_of_a_method_without_windows() -> None:
    learner = fresh()
    exact = evaluate(learner, replace(FEW, exact_steps=True))
    alone = evaluate(replace(learner, config=replace(TINY, method=ms.MAML())), FEW)
    assert timeless(exact) == timeless(alone)
    assert exact.accuracies != evaluate(learner, FEW).accuracies


def test_weights_of_windows_are_of_training_alone() -> None:
    method = ms.methods.MAMLPP(window=2, weights=(0.5, 0.5))
    learner = Learner.fresh(replace(TINY, method=method))
    for request in (replace(FEW, exact_steps=True), replace(FEW, steps=(3, 1))):
        assert evaluate(learner, request).episodes == FEW.episodes


def test_every_method_sees_the_same_episodes() -> None:
    learner = fresh()
    first_order = replace(learner, config=replace(TINY, seed=99, method=ms.FOMAML(window=2)))
    one, other = evaluate(learner, FEW), evaluate(first_order, FEW)
    assert timeless(one) == timeless(other)
    assert paired_difference(one, other) == (0, 0)
    assert evaluate(learner, replace(FEW, seed=1)).accuracies != one.accuracies
    assert paired_difference(one, evaluate(learner, replace(FEW, seed=1))) is None


def test_chunks_change_nothing() -> None:
    learner = fresh()
    results = [evaluate(replace(learner, config=replace(TINY, chunk_size=size)), FEW) for size in (1, 3, 100)]
    assert len({timeless(result).accuracies for result in results}) == 1


def test_there_is_no_dropout_even_in_a_learner_in_training() -> None:
    learner = Learner.fresh(replace(TINY, net=Net("tests.train.fewshot.helpers:Noisy", size=SIZE)))
    found = evaluate(learner, FEW)
    assert learner.net.training
    learner.net.eval()
    assert timeless(evaluate(learner, FEW)) == timeless(found)


def test_one_by_one_each_query_is_judged_as_classify_does() -> None:
    learner, sampler = (
        fresh(),
        Sampler.of(stripes(split="test"), TINY.test_episodes, EVALUATION_SEED, "cpu", torch.float32),
    )
    found = evaluate(learner, replace(FEW, one_by_one=True))
    tasks, expected = sampler(0, 7), []
    for i in range(7):
        (x, y), (new, truth) = ((part[i] for part in batch) for batch in tasks)
        predicted = learner.predict(learner.adapt(x, y), new, support=x).argmax(-1)
        expected.append(100 * float((predicted == truth).double().mean()))
    assert found.accuracies == pytest.approx(expected, abs=1e-3)
    together = evaluate(learner, FEW)
    assert found.accuracies != together.accuracies
    assert [score.step for score in found.by_step] == [4]
    assert paired_difference(found, together) is None, "they were not judged alike"


def test_other_ways_shots_queries_and_rotations() -> None:
    asked = Request(ways=4, shots=2, queries=3, rotations="as_classes", episodes=5, split="val")
    result = evaluate(fresh(), asked)
    assert (result.ways, result.shots, result.queries, result.split) == (4, 2, 3, "val")
    assert result.rotations == "as_classes"
    assert result.by_step[0].accuracy == pytest.approx(25)  # a head of zeros says the first class


def test_what_is_not_a_number_is_wrong() -> None:
    wild = replace(fresh(), config=replace(TINY, inner=replace(TINY.inner, lr=1e30)))
    result = evaluate(wild, FEW)
    assert result.not_finite == 7
    assert result.accuracy == 0


def test_random_numbers_outside_are_left_alone() -> None:
    learner, before = fresh(), torch.get_rng_state()
    evaluate(learner, Request(episodes=2))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_evaluated_and_probed(method: str) -> None:
    config = replace(TINY, method=named_method(method))
    config = replace(config, inner=replace(config.inner, momentum=0.0))
    learner = Learner.fresh(config)
    for request in (FEW, Request(ways=4, steps=6, exact_steps=True, episodes=3)):
        result = evaluate(learner, request)
        assert len(result.by_step) == result.steps + 1
        assert result.not_finite == 0
    asked = ask_learner(learner, 1)
    assert asked.gradients >= 4
    assert asked.differences.shape == (8, 4)
    assert bool(asked.differences.isfinite().all())
    assert len(asked.panels[0].classes) == 3


def test_the_file_is_read_back_and_replaced(tmp_path: Path) -> None:
    result = evaluate(fresh(), FEW)
    path = save(tmp_path, result)
    assert read_evaluations(tmp_path) == [result]
    assert save(tmp_path, replace(result, accuracy=1.0)) == path
    assert save(tmp_path, replace(result, checkpoint="untrained")) != path
    assert save(tmp_path, replace(result, windows=(1, 1, 1, 1))) != path
    assert len(read_evaluations(tmp_path)) == 3
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "metastep evaluation", "version": 1}', "\x00"])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    path = save(tmp_path, evaluate(fresh(), FEW))
    path.write_text(content)
    with pytest.raises(RunError, match="is no evaluation"):
        read_evaluations(tmp_path)


def test_what_cannot_work_is_said() -> None:
    with pytest.raises(MetastepError, match="at least 2"):
        Request(episodes=1)
    with pytest.raises(MetastepError, match="9-way episodes need 9 classes"):
        evaluate(fresh(), replace(FEW, ways=9))
    large = Learner.fresh(replace(TINY, net=replace(TINY.net, size=28)))
    with pytest.raises(MetastepError, match=r"are 1×16×16, and this learner takes 1×28×28"):
        evaluate(large, FEW)
