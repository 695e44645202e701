"""Compare approximations of the meta-gradient with the exact one, for a learner and its inner loop."""

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor, nn

from metastep.core.compare import Comparison, compare, gradient_difference
from metastep.core.curvature import exact
from metastep.core.methods import ANIL, FOMAML, HFMAML, MAML, MultiStep
from metastep.core.modules import evaluation_mode
from metastep.core.problems import params_of
from metastep.core.trees import tree_leaves
from metastep.core.windows import window_lengths
from metastep.data.pictures import Pictures
from metastep.data.progress import Progress, silent
from metastep.step.gradient import MetaGradient
from metastep.train.config import FewShot
from metastep.train.fewshot.building import gradient_of
from metastep.train.fewshot.choices import EVALUATION_SEED
from metastep.train.fewshot.learner import Learner
from metastep.train.fewshot.sampling import Sampler

EXACT = "MAML"


class Compared(NamedTuple):
    rows: list[Comparison]
    changes: Tensor
    """(tasks, steps) of the inner gradient, see `metastep.gradient_difference`"""


def compared(learner: Learner, images: Pictures, tasks: int, progress: Progress = silent) -> Compared:
    """At the learner's θ, on tasks of the classes that it is trained on"""
    config, theta = learner.config, params_of(learner.meta)
    draw = Sampler.of(images, config.train_episodes, EVALUATION_SEED, learner.device, tree_leaves(theta)[0].dtype)
    gradients, batch = gradients_of(config, learner.net), draw(0, tasks)
    exact = gradients[EXACT]
    with evaluation_mode(learner.net):
        rows = compare(gradients, theta, batch, repeats=2, progress=progress)
        changes = gradient_difference(exact.problem, exact.inner, config.steps)(theta, batch)
    return Compared(rows, changes)


def gradients_of(config: FewShot, net: nn.Module) -> dict[str, MetaGradient]:
    """Return by name: the same inner loop, where each step has a gradient of its own or several share one."""
    gradient = gradient_of(config, net)
    if isinstance(gradient.method, ANIL):
        gradient = replace(gradient, problem=gradient.method.problem(gradient.problem))
    steps = sum(window_lengths(config.steps))
    options = {"curvature": getattr(config.method, "curvature", exact)}
    methods = {
        EXACT: MAML(**options),
        **{f"Multi-step({2**k})": MultiStep(2**k, **options) for k in range(1, steps.bit_length())},
        "FO-MAML": FOMAML(),
        "HF-MAML": HFMAML(),
    }
    return {name: replace(gradient, method=method, steps=steps) for name, method in methods.items()}
