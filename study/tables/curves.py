"""Pictures of the curves of runs: a panel for each method or setting."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.colors import TABLEAU_COLORS
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter

from study import results
from study.bench.plot import STYLE, plot
from study.bench.results import Row
from study.tables import recipe_tables

Curve = Sequence[Sequence[float]]  # points (x, y)
COLOURS = tuple(TABLEAU_COLORS)
LETTERS = 18  # of a legend in an inch
# Studies of trials: that of starts, and those of variations, by what they were called.
FEW_SHOT, TRANSFER = ("carried", "first-order", "implicit", "mini-rates"), "transfer-choices"
VARIED = (*FEW_SHOT, TRANSFER)


def draw_losses(rows: Sequence[Row], picture: Path) -> None:
    methods = dict.fromkeys(row["method"] for row in rows)
    panels = {m: {row["run"]: row["curve"] for row in rows if row["method"] == m} for m in methods}
    draw(panels, len(panels), "loss on the queries", picture)


def draw_accuracies(rows: Sequence[Row], picture: Path) -> None:
    """A panel for each setting and method, in it a curve for each head, or whatever was varied"""
    panels: dict[str, dict[str, Curve]] = {}
    for row in rows:
        if row["curve"]:
            label = row["change" if "change" in row else "head"]
            panels.setdefault(f"{row['setting']}, {row['method']}", {})[label] = row["curve"]
    if panels:
        draw(panels, min(4, len(panels)), "validation accuracy, %", picture)


def draw(
    panels: Mapping[str, Mapping[str, Curve]], columns: int, ylabel: str, picture: Path, scale: str = "linear"
) -> None:
    """`panels`: title -> label -> curve; a label has the same colour in all of them"""
    labels = list(dict.fromkeys(label for curves in panels.values() for label in curves))
    rows = -(-len(panels) // columns)
    picture.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        entry = max(len(label) for label in labels) + 6  # a line, and what parts it from others
        letters = max(3 * columns * LETTERS, entry)
        in_a_row = min(len(labels), letters // entry)
        height = 2.3 * rows + 0.12 * -(-len(labels) // in_a_row)
        figure = Figure((letters / LETTERS, height), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
        drawn: dict[str, Line2D] = {}
        for axes, (title, curves) in zip(grid.flat, panels.items(), strict=False):
            for label, curve in curves.items():
                colour = COLOURS[labels.index(label) % len(COLOURS)]
                (drawn[label],) = axes.plot(*zip(*curve, strict=True), color=colour, linewidth=1)
            axes.set_title(title, loc="left")
            axes.set(xscale=scale, yscale=scale)
            if scale == "log":  # a range of less than ten has only small ticks, which matplotlib writes as powers
                axes.yaxis.set_major_formatter("{x:g}")
                axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.6), labelOnlyBase=False))
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        for axes in grid.flat[max(0, len(panels) - columns) : len(panels)]:
            axes.set_xlabel("iteration")
        for axes in grid[:, 0]:
            axes.set_ylabel(ylabel)
        figure.legend(drawn.values(), drawn, loc="outside lower center", ncols=in_a_row, fontsize=6, frameon=False)
        figure.savefig(picture, metadata={"Date": None})


def main() -> None:
    """Draw the curves and plots of all files of results."""
    for what, drawn in {"same-path": draw_losses, **dict.fromkeys(("starts", *VARIED), draw_accuracies)}.items():
        for path in sorted(results.FOLDER.glob(f"*-{what}*.json")):
            drawn(results.read(f"bench/{path.stem}")["rows"], results.picture_of(path.stem))
    for name, drawn_of in {"cpu": recipe_tables.draw, "xeon": recipe_tables.draw_all_of_multistep4}.items():
        for path in results.FOLDER.glob(f"{name}-recipes.json"):
            drawn_of(results.read(f"bench/{path.stem}")["rows"], results.picture_of("").parent)
    for picture in sorted(results.FOLDER.glob("*.svg")):
        content = results.read(f"bench/{picture.stem}")
        plot(content["rows"], content["device"], picture)
