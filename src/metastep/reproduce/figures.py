"""Figures in the form of the paper's, from the files that the claims are judged by."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metastep.bench.cases import PAPER_SETTINGS
from metastep.bench.plot import COLOURS, STYLE
from metastep.bench.results import Row
from metastep.reproduce.costs import Epochs, label, with_more_steps
from metastep.reproduce.outcomes import Outcome
from metastep.transfer.presets import TARGETS

TITLES = {
    "maml": "MAML",
    "multi_step2": "Multi-step (2)",
    "multi_step4": "Multi-step (4)",
    "multi_step8": "Multi-step (8)",
    "first_order": "FO-MAML",
    "reptile": "Reptile",
    "imaml": "iMAML",
}
MOST_STEPS = 8
SMALL, WIDTH = 32, 0.4  # pictures; bars


def draw_costs(bench: Path, picture: Path) -> list[str]:
    """Memory and time against inner steps, a row for each setting of the paper that `bench` has; these are returned"""
    rows, content = with_more_steps(bench)
    settings = [name for name in PAPER_SETTINGS if any(row["setting"] == name for row in rows)]
    if not settings:
        return []
    with mpl.rc_context(STYLE):
        figure = Figure((8, 2.8 * len(settings)), layout="constrained")
        grid = figure.subplots(len(settings), 2, squeeze=False)
        for axes, setting in zip(grid, settings, strict=True):
            those = [row for row in rows if row["setting"] == setting and row["steps"] <= MOST_STEPS]
            for ax, quantity, unit in zip(axes, ("peak_mib", "ms"), ("memory, MiB", "time, ms"), strict=True):
                _against_steps(ax, those, quantity)
                ax.set(xlabel="inner steps", ylabel=unit, title=setting)
        grid[0, 0].legend(fontsize=6, frameon=False)
        figure.suptitle(f"One meta-iteration on {content['device']}")
        figure.savefig(picture, metadata={"Date": None})
    return settings


def draw_gradient_differences(run: Outcome, picture: Path) -> None:
    """How the transfer gradient changes in a virtual step, over a run that looked"""
    with mpl.rc_context(STYLE):
        figure = Figure((5, 2.8), layout="constrained")
        axes = figure.subplots()
        axes.plot(*zip(*run.gradient_differences, strict=True), color=COLOURS["maml"], linewidth=0.8)
        axes.set(xlabel="epoch", ylabel="‖∇L(φ₁) − ∇L(φ₀)‖ / ‖∇L(φ₁)‖")
        axes.set_ylim(0)
        figure.savefig(picture, metadata={"Date": None})


def draw_epochs(epochs: Epochs, picture: Path) -> None:
    """Seconds of an epoch of each target, and what Multi-step saves; small pictures and large ones by themselves"""
    groups = [[t for t in epochs.seconds if (TARGETS[t][1].data.size > SMALL) is large] for large in (False, True)]
    with mpl.rc_context(STYLE):
        figure = Figure((7, 2.6), layout="constrained")
        grid = figure.subplots(1, len(groups), width_ratios=[len(group) for group in groups])
        for axes, group in zip(grid, groups, strict=True):
            for place, target in enumerate(group):
                for side, seconds, method in zip((-1, 1), epochs.seconds[target], ("maml", "multi_step2"), strict=True):
                    axes.bar(place + side * WIDTH / 2, seconds, WIDTH, color=COLOURS[method])
                ours = epochs.seconds[target][1]
                axes.annotate(f"−{epochs.savings[target]:.0f} %", (place + WIDTH / 2, ours), ha="center", va="bottom")
            axes.set_xticks(range(len(group)), group)
            axes.set_ylabel("s / epoch")
        grid[0].legend(["baseline", "Multi-step"], fontsize=6, frameon=False)
        figure.suptitle(f"Meta-transfer by Adam on {epochs.content['device']}")
        figure.savefig(picture, metadata={"Date": None})


def _against_steps(axes: Axes, rows: list[Row], quantity: str) -> None:
    for method, title in TITLES.items():
        points = sorted((row["steps"], row[quantity]) for row in rows if label(row) == method)
        if points:
            steps, values = zip(*points, strict=True)
            axes.plot(steps, values, "o-", color=COLOURS[method], label=title, markersize=3, linewidth=1.2)
    axes.set_xticks(range(1, MOST_STEPS + 1))
    axes.set_ylim(0)
