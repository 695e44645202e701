"""Compare approximations of the meta-gradient with the exact one, for a learner and its inner loop, and draw it."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from metastep.core.compare import Comparison, compare, gradient_difference
from metastep.core.curvature import exact
from metastep.core.methods import ANIL, FOMAML, HFMAML, MAML, MultiStep
from metastep.core.modules import evaluation_mode
from metastep.core.problems import params_of
from metastep.core.suggest import Suggestion, suggest
from metastep.core.trees import map_tree, tree_leaves
from metastep.core.windows import window_lengths
from metastep.data.errors import Progress, silent
from metastep.data.pictures import Pictures
from metastep.errors import MetastepError
from metastep.step.gradient import MetaGradient
from metastep.train.config import FewShot
from metastep.train.fewshot.evaluate import Sampler
from metastep.train.fewshot.learner import Learner, gradient_of
from metastep.train.io import replace_file
from metastep.train.schema import EVALUATION_SEED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXACT = "MAML"
FEW = 4  # tasks are enough to suggest by


class Compared(NamedTuple):
    rows: list[Comparison]
    changes: Tensor
    """(tasks, steps) of the inner gradient, see `metastep.gradient_difference`"""
    windows: dict[str, int]
    """The window of each method that has one, by its name"""
    suggestion: Suggestion


def compared(learner: Learner, images: Pictures, tasks: int, progress: Progress = silent) -> Compared:
    """At the learner's θ, on tasks of the classes that it is trained on"""
    config, theta = learner.config, params_of(learner.meta)
    draw = Sampler.of(images, config.train_episodes, EVALUATION_SEED, learner.device, tree_leaves(theta)[0].dtype)
    gradients, batch = gradients_of(config, learner.net), draw(0, tasks)
    exact = gradients[EXACT]
    with evaluation_mode(learner.net):
        rows = compare(gradients, theta, batch, repeats=2, progress=progress)
        changes = gradient_difference(exact.problem, exact.inner, config.steps)(theta, batch)
        few = map_tree(lambda x: x[:FEW], batch)
        suggestion = suggest(exact.problem, exact.inner, steps=config.steps, meta=theta, tasks=few)
    windows = {EXACT: 1, **{name: max(g.loop.lengths) for name, g in gradients.items() if type(g.method) is MultiStep}}
    return Compared(rows, changes, windows, suggestion)


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


# ---- the picture: cosine, error, time and memory against the window


KINDS = ("svg", "png")
STYLE: Any = {"svg.hashsalt": "metastep", "font.size": 8, "axes.spines.top": False, "axes.spines.right": False}
PANELS: dict[str, Callable[[Comparison], float]] = {
    "cosine with the exact gradient": lambda row: row.cosine,
    "relative error": lambda row: row.relative_error,
    "seconds": lambda row: row.seconds,
    "MiB at most": lambda row: row.peak_bytes / 2**20,
}


def figure_of(rows: Sequence[Comparison], windows: Mapping[str, int]) -> "Figure":
    """Draw what a comparison found.

    Args:
        rows: What `metastep.compare` returned.
        windows: The window of each method that has one, by its name. The others become horizontal lines.

    Returns:
        A figure with four panels.
    """
    from matplotlib import rc_context  # late: tables need no matplotlib
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure((10, 2.6), layout="constrained")
        for axes, (title, value) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
            points = sorted((windows[row.method], value(row)) for row in rows if row.method in windows)
            axes.plot(*zip(*points, strict=True), "o-", color="#d62728", label="Multi-step", clip_on=False)
            for i, row in enumerate(row for row in rows if row.method not in windows):
                axes.axhline(value(row), color=f"C{i}", linestyle="--", linewidth=1, label=row.method)
            axes.set_xscale("log", base=2)
            axes.set_xticks([n for n, _ in points])
            axes.xaxis.set_major_formatter("{x:g}")
            axes.set(
                xlabel="window: steps that share a gradient",
                ylim=(None, 1.05) if title.startswith("cosine") else (0, None),
            )
            axes.set_title(title, loc="left")
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def draw(rows: Sequence[Comparison], windows: Mapping[str, int], path: Path) -> None:
    """Write the picture of a comparison.

    Args:
        rows: What `metastep.compare` returned.
        windows: The window of each method that has one, by its name.
        path: Where, ending with .svg or .png.

    Raises:
        MetastepError: The path has another ending, or cannot be written.
    """
    from matplotlib import rc_context

    kind = require_kind(path)
    content, metadata = io.BytesIO(), {"Date": None} if kind == "svg" else {}
    with rc_context(STYLE):
        figure_of(rows, windows).savefig(content, format=kind, dpi=150, metadata=metadata)
    replace_file(path, content.getvalue())


def require_kind(path: Path) -> str:
    """Return the kind of picture that a path asks for, or refuse it."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise MetastepError(f"{str(path)!r}: a picture ends with {' or '.join('.' + kind for kind in KINDS)}.")
    return kind
