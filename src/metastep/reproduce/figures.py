"""Figures in the form of the paper's, from the files that the claims are judged by."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metastep.bench.cases import PAPER_SETTINGS
from metastep.bench.plot import COLOURS, STYLE
from metastep.bench.results import Row
from metastep.reproduce.costs import label, with_more_steps
from metastep.reproduce.transfer_runs import gradient_differences

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


def draw_gradient_differences(metrics: Path, picture: Path) -> bool:
    """How the transfer gradient changes in a virtual step, over a run; False where it did not look"""
    looks = gradient_differences(metrics)
    if not looks:
        return False
    with mpl.rc_context(STYLE):
        figure = Figure((5, 2.8), layout="constrained")
        axes = figure.subplots()
        axes.plot(*zip(*looks, strict=True), color=COLOURS["maml"], linewidth=0.8)
        axes.set(xlabel="epoch", ylabel="‖∇L(φ₁) − ∇L(φ₀)‖ / ‖∇L(φ₁)‖")
        axes.set_ylim(0)
        figure.savefig(picture, metadata={"Date": None})
    return True


def _against_steps(axes: Axes, rows: list[Row], quantity: str) -> None:
    for method, title in TITLES.items():
        points = sorted((row["steps"], row[quantity]) for row in rows if label(row) == method)
        if points:
            steps, values = zip(*points, strict=True)
            axes.plot(steps, values, "o-", color=COLOURS[method], label=title, markersize=3, linewidth=1.2)
    axes.set_xticks(range(1, MOST_STEPS + 1))
    axes.set_ylim(0)
