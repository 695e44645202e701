"""`metastep compare`: how far each approximation is from the exact meta-gradient, for a learner and its inner loop."""

from dataclasses import replace
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from metastep.cli.common import Data, progress_bar, refusals
from metastep.cli.use import CheckpointChoice, DeviceChoice, Net, open_learner
from metastep.core.diagnostics import Comparison, compare, gradient_difference
from metastep.core.modules import evaluation_mode
from metastep.core.problems import adapt_only, params_of
from metastep.core.trees import tree_leaves
from metastep.core.windows import window_lengths
from metastep.data.images import ImageSet
from metastep.data.progress import Progress, silent
from metastep.errors import how_many
from metastep.train.device import device_for
from metastep.train.fewshot.building import build, build_dynamics, build_estimator, method_options
from metastep.train.fewshot.choices import EVALUATION_SEED
from metastep.train.fewshot.config import MethodConfig, TrainConfig
from metastep.train.fewshot.learner import Learner
from metastep.train.fewshot.presets import PRESETS
from metastep.train.fewshot.sampling import Sampler, fitted, read_split
from metastep.train.fewshot.shipped import find_learner

EXACT = "MAML"
READING = (
    "cosine: 1 where it points the same way as the exact gradient; error: how far it is from it, beside its length.",
    "Multi-step learns by the exact gradient of its own inner loop: far from MAML's, it is another method, not a bad "
    "estimate. First order and finite differences estimate MAML's own.",
)


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


def compare_methods(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run's folder, a learner's file, a learner that comes with metastep, or a preset."
        ),
    ],
    tasks: Annotated[int, typer.Option(min=1, help="How many, drawn as in training.")] = 8,
    checkpoint: CheckpointChoice = "best",
    net: Net = None,
    device: DeviceChoice = "auto",
    data: Data = None,
) -> None:
    """Compare approximations with the exact meta-gradient: how near each is, and what it costs."""
    with refusals():
        known = None if run in PRESETS else open_learner(find_learner(run), checkpoint, net, device)
        config = known.config if known else PRESETS[run]
        with progress_bar("reading") as progress:
            images = read_split(config.data, data, config.data.split, progress)
        learner = known or Learner.fresh(fitted(config, images)).to(device_for(device))
        with progress_bar("comparing methods") as progress:
            found = compared(learner, images, tasks, progress)
        show(found, learner.config, tasks)


def show(found: Compared, config: TrainConfig, tasks: int) -> None:
    console, inner = Console(), config.inner
    loop = f"{how_many(sum(window_lengths(inner.steps)), 'inner step')} of {inner.optimizer} at {inner.lr:g}"
    console.print(Text(f"{config.data.ways}-way {config.data.shots}-shot, {loop}, {how_many(tasks, 'task')} at once"))
    table = Table(header_style="bold", border_style="dim")
    for heading in ("method", "cosine", "error", "gradients", "products", "seconds", "MiB"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for row in found.rows:
        costs = f"{row.gradients}", f"{row.products}", f"{row.seconds:.3g}", f"{row.peak_bytes / 2**20:,.0f}"
        table.add_row(row.method, f"{row.cosine:.3f}", f"{row.relative_error:.3g}", *costs)
    console.print(table)
    changes = "  ".join(f"{change:.2g}" for change in found.changes.mean(0).tolist())
    console.print(Text(f"How much the inner gradient changes in each step (small: it can be reused): {changes}"))
    if config.method.name in ("meta_sgd", "maml_pp"):
        console.print(Text("All of it at the rate that training began with: learned rates are left out.", "yellow"))
    for line in READING:
        console.print(Text(line, "dim"))
