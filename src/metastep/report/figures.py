"""Curves as SVG that goes into the page itself. Words and lines take the colour of the text around them."""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from metastep.report.collect import RunReport
from metastep.report.reported import Point, Reported

INK = "#010203"  # stands for the colour of the text, which is only known where the page is read
SIZE = (3.7, 2.4)
MOST_POINTS = 150  # of a curve: each is the mean of as many rows as it takes
STYLE: Any = {  # the font is the one that matplotlib has with it; the page puts its own in its place
    "svg.fonttype": "none", "svg.hashsalt": "metastep", "font.family": "DejaVu Sans", "font.size": 8.5,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6,
    "axes.grid": True, "grid.color": INK, "grid.alpha": 0.12, "grid.linewidth": 0.6,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "figure.facecolor": "none", "axes.facecolor": "none",
}  # fmt: skip
NOTHING_ABOUT_IT = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # else matplotlib writes links and the time


def loss_figure(runs: Sequence[RunReport]) -> Markup | None:
    return curves(runs, "train", ("step", "loss"), "iteration", "loss on queries", 1)


def accuracy_figure(runs: Sequence[RunReport]) -> Markup | None:
    return curves(runs, "train", ("step", "accuracy"), "iteration", "accuracy on queries, %", 100)


def validation_figure(runs: Sequence[RunReport]) -> Markup | None:
    keys = ("step", "validation_accuracy", "validation_interval")
    return curves(runs, "validation", keys, "iteration", "accuracy, %", 100)


def time_figure(runs: Sequence[RunReport]) -> Markup | None:
    keys = ("seconds", "validation_accuracy", "validation_interval")
    return curves(runs, "validation", keys, "seconds of training", "accuracy, %", 100)


def step_figure(runs: Sequence[RunReport]) -> Markup | None:
    """After how many adaptation steps a learner is how good, in the evaluation that speaks for its run"""
    judged = [(run, run.headline) for run in runs]
    lines = [(run, [(s.step, s.accuracy, s.interval) for s in e.by_step]) for run, e in judged if e is not None]
    return _figure(lines, "adaptation steps", "accuracy, %", marker="o") if lines else None


def difference_figure(runs: Sequence[RunReport]) -> Markup | None:
    asked = [(run, run.probed.differences.numpy()) for run in runs if run.probed]
    asked = [
        (run, values) for run, values in asked if np.isfinite(values).any() and (values[np.isfinite(values)] > 0).any()
    ]
    if not asked:
        return None

    def draw(axes: Axes) -> None:
        for run, values in asked:
            low, middle, high = _quartiles(values)
            steps = np.arange(1, len(middle) + 1)
            axes.fill_between(steps, low, high, color=run.colour, alpha=0.18, linewidth=0)
            axes.plot(steps, middle, color=run.colour, marker="o", markersize=3, linewidth=1.6)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())

    return drawn(draw, "inner step", "relative change of the gradient")


def _quartiles(values: NDArray[np.float64]) -> NDArray[np.float64]:
    finite = np.where(np.isfinite(values), values, np.nan)
    empty = np.isnan(finite).all(0)
    finite[:, empty] = 0  # a column of nothing has no quartiles, and numpy would warn
    quartiles: NDArray[np.float64] = np.nanpercentile(finite, (25, 50, 75), axis=0)
    quartiles[:, empty] = np.nan
    return quartiles


def curves(runs: Sequence[Reported], kind: str, keys: tuple[str, ...], x: str, y: str, scale: float) -> Markup | None:
    lines = [(run, thinned(run.curve(kind, *keys))) for run in runs]
    scaled = [
        (run, [(point[0], *(scale * v for v in point[1:])) for point in points]) for run, points in lines if points
    ]
    return _figure(scaled, x, y, marker="o" if kind == "validation" else None) if scaled else None


def thinned(points: list[Point]) -> list[Point]:
    """Not more points than can be seen: means of neighbours"""
    if len(points) <= MOST_POINTS:
        return points
    return [tuple(part.mean(0).tolist()) for part in np.array_split(np.array(points), MOST_POINTS)]


def _figure(lines: Sequence[tuple[Reported, Sequence[Point]]], x: str, y: str, marker: str | None) -> Markup:
    def draw(axes: Axes) -> None:
        for run, points in lines:
            columns = np.array(points).T
            if (columns[0] % 1 == 0).all():
                axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
            axes.plot(*columns[:2], color=run.colour, linewidth=1.6, marker=marker, markersize=3)
            if len(columns) == 3:
                low, high = columns[1] - columns[2], columns[1] + columns[2]
                axes.fill_between(columns[0], low, high, color=run.colour, alpha=0.18, linewidth=0)

    return drawn(draw, x, y)


def drawn(draw: Callable[[Axes], None], x: str, y: str, size: tuple[float, float] = SIZE) -> Markup:
    with mpl.rc_context(STYLE):
        figure = Figure(size, layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata=NOTHING_ABOUT_IT, transparent=True)
    return inlined(text.getvalue(), f"{y} by {x}")


def inlined(svg: str, label: str) -> Markup:
    """The element alone, as wide as its place. All its words are ours: names of runs stand in the page."""
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r' (?:width|height)="[\d.]+pt"| xmlns(?::xlink)?="[^"]*"| version="[^"]*"', "", svg)
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg)  # the same in every figure; only hashes are referred to
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1))
