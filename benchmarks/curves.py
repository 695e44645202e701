"""Pictures of curves, a panel for each method or setting."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from metastep.bench.plot import STYLE

Curve = Sequence[Sequence[float]]  # points (x, y)
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple")


def draw(panels: Mapping[str, Mapping[str, Curve]], columns: int, ylabel: str, picture: Path) -> None:
    """`panels`: title -> label -> curve; a label has the same colour in all of them"""
    labels = list(dict.fromkeys(label for curves in panels.values() for label in curves))
    rows = -(-len(panels) // columns)
    picture.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figure = Figure((3 * columns, 2.3 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for axes, (title, curves) in zip(grid.flat, panels.items(), strict=False):
            for label, curve in curves.items():
                colour = COLOURS[labels.index(label) % len(COLOURS)]
                axes.plot(*zip(*curve, strict=True), color=colour, label=label, linewidth=1)
            axes.set_title(title, loc="left")
        for axes in grid[-1]:
            axes.set_xlabel("iteration")
        for axes in grid[:, 0]:
            axes.set_ylabel(ylabel)
        grid[0, 0].legend(fontsize=6, frameon=False)
        figure.savefig(picture, metadata={"Date": None})
