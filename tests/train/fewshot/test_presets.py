from dataclasses import replace

import pytest
import torch
from torch import Tensor

from metastep.core.problems import params_of
from metastep.core.trees import Tree, tree_leaves
from metastep.core.windows import Task
from metastep.data.draw import draw
from metastep.step.mapped import mapped
from metastep.step.update import MetaStep
from metastep.train import presets
from metastep.train.config import FewShot
from metastep.train.fewshot.job import build_optimizer
from metastep.train.fewshot.learner import Learner, build_net, gradient_of

PRESETS = presets.few_shot()

PAPER = ("maml", "fomaml", "multistep2", "multistep4", "multistep8")


def test_every_cell_of_the_paper_and_the_published_recipes_are_there() -> None:
    cells = [f"omniglot-{s}-{m}" for s in ("5w1s", "5w5s", "20w1s", "20w5s") for m in (*PAPER, "reptile", "imaml")]
    cells += [f"omniglot-20w1s-{m}" for m in ("maml_sgd", "maml_finn")]
    cells += [f"miniimagenet-{s}-{m}" for s in ("5w1s", "5w5s") for m in (*PAPER, "reptile")]
    assert set(cells) == {name for name in PRESETS if not name.startswith("glyphs")}


def shrunk(config: FewShot) -> FewShot:
    """As small as it gets, with everything that the preset is about left in"""
    data = replace(config.data, ways=min(config.data.ways, 3), shots=1, queries=1)
    return replace(config, data=data, net=config.net.changed(filters=4), tasks=1)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_meta_step(name: str) -> None:
    assert PRESETS[name].data.ways == int(name.split("-")[1].split("w")[0])
    assert PRESETS[name].test_episodes.shots == int(name.split("w")[1].split("s")[0])
    config = shrunk(PRESETS[name])
    net = build_net(config)
    gradient = gradient_of(config, net)
    meta = gradient.init(net)
    images = torch.randint(0, 256, (4, 2, config.net.channels, config.net.size, config.net.size), dtype=torch.uint8)
    before = [p.detach().clone() for p in tree_leaves(meta)]
    step = MetaStep(gradient, meta, build_optimizer(config.outer, meta), clip=config.outer.clip)
    step(draw(images, config.train_episodes, 0, 0, 1))
    assert any(not torch.equal(p, b) for p, b in zip(tree_leaves(meta), before, strict=True))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_differentiated_by_hand(name: str) -> None:
    config = replace(shrunk(PRESETS[name]), device="cpu")
    gradient = gradient_of(config, Learner.fresh(config).net)
    assert gradient.by_hand(config.net.size).path == "derivatives by hand, in PyTorch (float32)"


def by_parameter(meta: Tree) -> list[tuple[str, dict[str, Tensor]]]:
    """θ, and those parts of an optimizer's memory that are shaped as θ"""
    memory = meta["memory"].items() if params_of(meta) is not meta else ()
    return [("θ", params_of(meta)), *((i, part) for i, part in memory if isinstance(part, dict))]


@pytest.mark.parametrize("name", ["omniglot-5w1s-reptile", "omniglot-20w5s-imaml", "miniimagenet-5w1s-reptile"])
def test_published_recipes_are_the_same_by_hand_and_by_autograd(name: str) -> None:
    config = shrunk(PRESETS[name])
    data = replace(config.data, shots=3, queries=2)
    config = replace(config, data=data, precision="float64", batch=config.batch and 4)  # 3, 3, 3
    learner = Learner.fresh(config)
    shape = (4, 5, config.net.channels, config.net.size, config.net.size)
    images = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    support, query = ((x.double(), y) for x, y in draw(images, config.train_episodes, 0, 0, 3))
    by_hand = gradient_of(config, learner.net)
    ways = (by_hand, mapped(by_hand.method, by_hand.loop, None))
    found, expected = (way(learner.meta, Task(support, query)) for way in ways)
    assert by_hand.path == "derivatives by hand, in PyTorch (float64)"
    for part, value_of in by_parameter(expected.grad):
        for parameter, value in value_of.items():
            # Before BatchNorm: 0 by hand, rounding by autograd, which Adam enlarges
            no_use = parameter.endswith("bias") and value_of[parameter.replace("bias", "weight")].dim() == 4
            other = dict(by_parameter(found.grad))[part][parameter]
            torch.testing.assert_close(other, value, rtol=1e-9, atol=1e-6 if no_use else 1e-9)
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-9, atol=1e-9)
