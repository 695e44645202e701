"""The learners that come with metastep: each opens by name, is small, has a card, and can do what it is for."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from metastep import Learner
from metastep.data.draw import draw
from metastep.data.registry import load
from metastep.train.presets import shipped


@pytest.mark.parametrize("name", shipped())
def test_a_learner_comes_with_metastep(name: str) -> None:
    assert shipped()[name].stat().st_size < 1_000_000
    assert shipped()[name].with_suffix(".md").read_text().startswith(f"# {name}\n")
    learner = Learner.load(name)
    net = learner.config.net

    def as_seen(x: Tensor) -> Tensor:
        """Drawings are photos too, of the right size and in three colours"""
        return interpolate(x, (net.size, net.size), mode="bilinear").expand(-1, net.channels, -1, -1)

    tasks = draw(load("glyphs").classes("test").rows()[0], learner.config.test_episodes, seed=1, k=0, tasks=8)
    right = []
    for i in range(8):
        (x, y), (new, truth) = ((as_seen(part[0][i]), part[1][i]) for part in tasks)
        right.append((learner.predict(learner.adapt(x, y), new).argmax(-1) == truth).float().mean())
    assert torch.stack(right).mean() > 0.5  # on glyphs, which none has ever seen; chance is at most 0.2


def test_there_is_one() -> None:
    assert "omniglot-5w1s" in shipped()
