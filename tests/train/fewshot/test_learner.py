import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from metastep.core.problems import every_window, in_batches, params_of
from metastep.core.trees import map_tree, tree_leaves
from metastep.core.windows import Problem, Task
from metastep.errors import MetastepError
from metastep.train import presets
from metastep.train.config import FewShot, Net, Test
from metastep.train.fewshot.evaluate import with_steps
from metastep.train.fewshot.learner import Learner, build_net, gradient_of
from metastep.train.io import CheckpointError
from metastep.train.loop import train
from tests.train.fewshot.helpers import CARRIED, METHODS, SIZE, TINY, Flat, named_method, tiny

PRESETS = presets.few_shot()

OWN = replace(TINY, net=Net("tests.train.fewshot.helpers:Flat", size=SIZE))


def support(ways: int = 3, shots: int = 2) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.rand(ways * shots, 1, SIZE, SIZE), torch.arange(ways).repeat_interleave(shots)


def with_method(name: str) -> FewShot:
    return replace(TINY, method=named_method(name))


@pytest.mark.parametrize("method", METHODS)
def test_adapting_is_the_inner_loop_of_training(method: str) -> None:
    learner = Learner.fresh(with_method(method))
    loop, task = gradient_of(learner.config, learner.net).loop, Task(support(), None)
    with torch.no_grad():
        expected = loop.adapt(learner.meta, task).params
        *_, last = learner.trajectory(support())
    adapted = learner.adapt(*support())
    assert list(adapted) == list(params_of(learner.meta))
    for name in expected:
        assert torch.equal(adapted[name], expected[name])
        torch.testing.assert_close(last[name], expected[name])


def test_a_trajectory_has_every_step() -> None:
    learner = Learner.fresh(TINY)
    with torch.no_grad():
        params = list(learner.trajectory(support()))
    assert len(params) == 5
    assert all(torch.equal(a, b) for a, b in zip(params[0].values(), learner.meta.values(), strict=True))


def test_the_order_of_the_support_does_not_matter() -> None:
    learner = Learner.fresh(replace(TINY, batch=3))
    x, y = support()
    order = torch.tensor([4, 5, 0, 1, 2, 3])
    a, b = learner.adapt(x, y), learner.adapt(x[order], y[order])
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_probabilities_with_others_and_apart() -> None:
    learner = Learner.fresh(TINY)
    x, y = support()
    params = learner.adapt(x, y)
    together, apart = learner.predict(params, x), learner.predict(params, x, support=x)
    for p in (together, apart):
        assert p.shape == (6, 3)
        torch.testing.assert_close(p.sum(-1), torch.ones(6))
    one = learner.predict(params, x[:1], support=x)
    torch.testing.assert_close(apart[:1], one)  # whoever else is asked about


@pytest.mark.parametrize("config", [*map(with_method, METHODS), CARRIED], ids=[*METHODS, "carried"])
def test_other_ways_and_steps(config: FewShot) -> None:
    learner = with_steps(Learner.fresh(config).changed(ways=5), 7)
    x, y = support(ways=5)
    with torch.no_grad():
        assert len(list(learner.trajectory((x, y)))) == 8
    assert learner.predict(learner.adapt(x, y), x).shape == (10, 5)
    assert not params_of(learner.meta)["head.weight"].any()
    assert torch.equal(
        params_of(learner.meta)["blocks.0.0.weight"], params_of(Learner.fresh(TINY).meta)["blocks.0.0.weight"]
    )


def test_what_an_optimizer_remembers_of_a_head_serves_other_ways_by_its_mean() -> None:
    learner = Learner.fresh(CARRIED)
    with torch.no_grad():
        map_tree(lambda x: x.uniform_(), learner.meta["memory"])
    moments, others = learner.meta["memory"]["1"], learner.changed(ways=5).meta["memory"]["1"]
    assert torch.equal(others["blocks.0.0.weight"], moments["blocks.0.0.weight"])
    torch.testing.assert_close(others["head.bias"], moments["head.bias"].mean().expand(5))


def test_other_ways_keep_what_is_not_learned(tmp_path: Path) -> None:
    config = replace(TINY, net=Net("tests.train.fewshot.helpers:Noisy", size=SIZE))
    trained = Learner.fresh(config)
    for value in trained.tree()["held"].values():
        value.fill_(7)
    trained.save(tmp_path / "noisy.safetensors")
    held = Learner.load(tmp_path / "noisy.safetensors", net=config.net.name).changed(ways=5).tree()["held"]
    assert {name: value.tolist() for name, value in held.items()} == {"shift": [7], "scale": [7], "offset": [0] * 5}


def test_other_ways_keep_the_mode(tmp_path: Path) -> None:
    config = replace(TINY, net=Net("tests.train.fewshot.helpers:Noisy", size=SIZE))
    learner = Learner.fresh(config)
    assert learner.changed(ways=5).net.training
    learner.save(tmp_path / "noisy.safetensors")
    used = Learner.load(tmp_path / "noisy.safetensors", net=config.net.name).changed(ways=5)
    x, y = support(ways=5)
    assert torch.equal(used.adapt(x, y)["head.weight"], used.adapt(x, y)["head.weight"])  # without dropout


def test_a_learner_with_the_same_ways_keeps_its_head() -> None:
    learner = Learner.fresh(replace(TINY, net=TINY.net.changed(head_init="normal")))
    assert torch.equal(learner.changed(ways=3).meta["head.weight"], learner.meta["head.weight"])


def test_test_settings_are_those_of_use() -> None:
    learner = Learner.fresh(replace(TINY, test=Test(steps=6)))
    assert learner.loop.lengths == (2, 2, 2)


@pytest.mark.parametrize("config", [TINY, with_method("meta_sgd"), with_method("maml_pp"), CARRIED])
def test_a_saved_learner_is_the_same(config: FewShot, tmp_path: Path) -> None:
    learner = Learner.fresh(config)
    with torch.no_grad():
        for p in tree_leaves(learner.meta):
            p.normal_()
    learner.save(str(tmp_path / "learner.safetensors"))
    again = Learner.load(tmp_path / "learner.safetensors")
    assert again.config == learner.config
    for a, b in zip(tree_leaves(again.meta), tree_leaves(learner.meta), strict=True):
        assert torch.equal(a, b)


def test_a_run_is_loaded_at_its_best_or_last(tmp_path: Path) -> None:
    train(tiny(iterations=8), tmp_path / "run")
    best, last = (Learner.load(tmp_path / "run", which) for which in ("best", "last"))  # type: ignore[arg-type]
    assert best.config == last.config
    train(replace(tiny(iterations=2), validation=replace(TINY.validation, every=0)), tmp_path / "other")
    Learner.load(tmp_path / "other")


def test_a_users_net_is_imported_only_when_named_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(replace(OWN, iterations=2), tmp_path / "run")
    imported: list[str] = []
    monkeypatch.setattr("metastep.train.fewshot.learner.load_net", lambda name: imported.append(name) or Flat)
    with pytest.raises(MetastepError, match=r"name it again: --net=tests\.train\.fewshot\.helpers:Flat"):
        Learner.load(tmp_path / "run")
    assert not imported
    learner = Learner.load(tmp_path / "run", net="tests.train.fewshot.helpers:Flat")
    assert imported
    assert set(learner.tree()["held"]) == {"shift"}


def test_mini_batches_take_turns_over_the_classes() -> None:
    config = TINY
    problem = gradient_of(config, build_net(config)).problem
    y = torch.arange(5).repeat_interleave(10)
    windows = in_batches(problem, 10).windows(Task((torch.arange(50.0), y), None), [1] * 7)
    assert all(torch.equal(window.batch[1], torch.arange(5).repeat_interleave(2)) for window in windows)
    seen = torch.cat([window.batch[0] for window in windows[:5]])
    assert torch.equal(seen.sort().values, torch.arange(50.0))
    assert torch.equal(windows[5].batch[0], windows[0].batch[0])


@pytest.mark.parametrize("shots", [1, 5])
def test_batches_that_cannot_be_balanced_are_shuffled_before_every_pass(shots: int) -> None:
    """As Reptile's tests at 20 ways: no picture again before all were taken, and other classes together every time"""
    config = PRESETS[f"omniglot-20w{shots}s-reptile"].as_tested()
    pictures, passes = 20 * shots, 10
    numbers = torch.arange(pictures)
    problem = Problem(lambda meta, task: meta, every_window(lambda params, meta, batch: params), lambda *of: of[0])
    for axis in (0, 1):
        support = map_tree(lambda x, axis=axis: x.expand(3, -1) if axis else x, (numbers, numbers // shots))
        whole = in_batches(problem, config.batch or 0, axis, config.shuffles_batches)
        windows = whole.windows(Task(support, None), [1] * (passes * pictures // 10))
        seen, labels = (torch.stack([(w.batch[i][0] if axis else w.batch[i]) for w in windows]) for i in (0, 1))
        assert torch.equal(seen.view(passes, -1).sort().values, numbers.expand(passes, -1))
        assert torch.equal(labels, seen // shots)
        assert len({tuple(each.tolist()) for each in seen.sort().values}) == len(windows)


def test_runs_that_were_published_take_the_batches_they_took() -> None:
    shuffling = {
        name for name, config in PRESETS.items() for each in (config, config.as_tested()) if each.shuffles_batches
    }
    assert shuffling == {"omniglot-20w1s-reptile", "omniglot-20w5s-reptile"}


def test_what_cannot_be_adapted_to() -> None:
    learner = Learner.fresh(TINY)
    with pytest.raises(MetastepError, match=r"\.changed\(ways=5\)"):
        learner.adapt(*support(ways=5))
    with pytest.raises(MetastepError, match=re.escape("needs (n, 1, 16, 16) and (n,)")):
        learner.adapt(torch.rand(3, 1, 28, 28), torch.arange(3))
    x, y = support()
    with pytest.raises(MetastepError, match=r"torch.uint8.*x\.to\(torch.float32\).*\[0, 1\]"):
        learner.adapt((255 * x).byte(), y)
    with pytest.raises(MetastepError, match=r"torch.float64, but the parameters are torch.float32"):
        learner.predict(learner.adapt(x, y), x.double())
    with pytest.raises(MetastepError, match=r"classes: int.*torch\.as_tensor"):
        learner.adapt(x, y.tolist())


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    Learner.fresh(OWN).save(tmp_path / "own.safetensors")
    with pytest.raises(CheckpointError, match="does not fit the net 'conv4'"):
        Learner.load(tmp_path / "own.safetensors", net="conv4")
    with pytest.raises(MetastepError, match="no such run or learner"):
        Learner.load(tmp_path / "absent.safetensors")
    with pytest.raises(MetastepError, match="holds no run"):
        Learner.load(tmp_path)


def test_a_learner_in_training_is_judged_as_it_is() -> None:
    learner = Learner.fresh(with_method("maml_pp"))
    before = learner.adapt(*support())
    with torch.no_grad():
        for rate in learner.meta["rates"].values():
            rate.zero_()
    after = learner.adapt(*support())
    assert not torch.equal(before["head.weight"], after["head.weight"])
    assert torch.equal(after["head.weight"], learner.meta["params"]["head.weight"])
