"""The learners that come with metastep: each opens by name, is small, has a card, and can do what it is for."""

import pytest
import torch

from metastep import Learner
from metastep.data import load
from metastep.data.episodes import draw
from metastep.fewshot.shipped import shipped


@pytest.mark.parametrize("name", shipped())
def test_a_learner_comes_with_metastep(name: str) -> None:
    assert shipped()[name].stat().st_size < 1_000_000
    assert shipped()[name].with_suffix(".md").read_text().startswith(f"# {name}\n")
    learner = Learner.load(name)
    tasks = draw(load("glyphs", None, "test").images, learner.config.test_episodes, seed=1, k=0, tasks=8)
    right = []
    for i in range(8):
        params = learner.adapt(tasks.support[0][i], tasks.support[1][i])
        right.append((learner.predict(params, tasks.query[0][i]).argmax(-1) == tasks.query[1][i]).float().mean())
    assert torch.stack(right).mean() > 0.6  # on glyphs, which it has never seen; chance is 0.2


def test_there_is_one() -> None:
    assert "omniglot-5w1s" in shipped()
