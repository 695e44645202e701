"""Compare approximations of the meta-gradient with the exact one, for a learner and its inner loop."""

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from metastep.core.diagnostics import Comparison, compare, gradient_difference
from metastep.core.modules import evaluation_mode
from metastep.core.problems import adapt_only, params_of
from metastep.core.trees import tree_leaves
from metastep.core.windows import window_lengths
from metastep.data.images import ImageSet
from metastep.data.progress import Progress, silent
from metastep.train.fewshot.building import build, build_dynamics, build_estimator, method_options
from metastep.train.fewshot.choices import EVALUATION_SEED
from metastep.train.fewshot.config import MethodConfig, TrainConfig
from metastep.train.fewshot.learner import Learner
from metastep.train.fewshot.sampling import Sampler

EXACT = "MAML"


class Compared(NamedTuple):
    rows: list[Comparison]
    changes: Tensor
    """(tasks, steps) of the inner gradient, see `metastep.gradient_difference`"""


def compared(learner: Learner, images: ImageSet, tasks: int, progress: Progress = silent) -> Compared:
    """At the learner's θ, on tasks of the classes that it is trained on"""
    config, theta = learner.config, params_of(learner.meta)
    draw = Sampler.of(images, config.train_episodes, EVALUATION_SEED, learner.device, tree_leaves(theta)[0].dtype)
    problem, batch = build(config, learner.net).problem, draw(0, tasks)
    if head := method_options(config.method).get("head"):
        problem = adapt_only(problem, head)
    methods = {name: build_estimator(asked, problem) for name, asked in methods_of(config).items()}
    with evaluation_mode(learner.net):
        rows = compare(methods, theta, batch, chunk_size=config.chunk_size, repeats=2, progress=progress)
        changes = gradient_difference(problem, build_dynamics(config.inner), config.inner.steps)(theta, batch)
    return Compared(rows, changes)


def methods_of(config: TrainConfig) -> dict[str, TrainConfig]:
    """By name: the same inner loop, each step by a gradient of its own or several by one"""
    steps = sum(window_lengths(config.inner.steps))
    config = replace(config, inner=replace(config.inner, steps=steps))
    windows = [2**k for k in range(1, steps.bit_length()) if 2**k <= steps]
    curvature = config.method.curvature
    methods = {
        EXACT: MethodConfig("maml", curvature=curvature),
        **{f"Multi-step({n})": MethodConfig("multi_step", window=n, curvature=curvature) for n in windows},
        "FO-MAML": MethodConfig("fo_maml"),
        "HF-MAML": MethodConfig("hf_maml"),
    }
    return {name: replace(config, method=method) for name, method in methods.items()}
