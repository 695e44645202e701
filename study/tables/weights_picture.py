"""One picture of what and where runs have transferred: a row for where and one for what of each run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from numpy.typing import NDArray

from metastep.report.figures import LEARNS, STYLE, TEACHES, TITLES, Rows, Weights, draw_curves, draw_matrix, weights_of

BLACK: Any = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "black")


def save_weights_picture(runs: Sequence[tuple[str, Rows]], path: Path) -> None:
    """Draw the runs, given by name and rows of metrics."""
    shown = [(name, found) for name, rows in runs for which in TITLES if (found := weights_of(rows, which))]
    columns = 1 + max(weights.matrix.shape[2] for _, weights in shown)
    with mpl.rc_context({**STYLE, **BLACK, "figure.facecolor": "white"}):
        figure = Figure((2.9 * columns, 2.4 * len(shown)), layout="constrained", dpi=110)
        for row, (name, weights) in zip(figure.subplots(len(shown), columns, squeeze=False), shown, strict=True):
            _draw_row(row, name, weights)
        figure.savefig(path)


def _draw_row(row: NDArray[Any], name: str, weights: Weights) -> None:
    """First where it ended, then how it came there"""
    draw_matrix(row[0], weights)
    title = f"{weights.which}: {TITLES[weights.which]}"
    row[0].set(xlabel=LEARNS, ylabel=TEACHES)
    row[0].set_title(f"{name}\n{title}, last epoch", fontsize=9, fontweight="bold")
    for axes, n in zip(row[1:], range(len(weights.targets)), strict=False):
        draw_curves(axes, weights, n)
        axes.set_xlabel("epoch")
        axes.set_title(f"into target layer\n{weights.targets[n]}", fontsize=9)
    row[1].set_ylabel(title)
    row[1].legend(title="from source layer", fontsize=6.5, title_fontsize=6.5, frameon=False)
    for axes in row[1 + len(weights.targets) :]:
        axes.set_axis_off()
