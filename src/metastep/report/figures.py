"""Curves as SVG that goes into the page itself. Words and lines take the colour of the text around them."""

import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from metastep.data.errors import printable
from metastep.report.reported import COLOURS, Point, Reported, number
from metastep.train.evaluate import OnEpisodes

INK = "#010203"  # stands for the colour of the text, which is only known where the page is read
SIZE = (3.7, 2.4)
MOST_POINTS = 150  # of a curve: each is the mean of as many rows as it takes
MOST_MARKED = 30  # points that are drawn as such
STYLE: Any = {  # the font is the one that matplotlib has with it; the page puts its own in its place
    "svg.fonttype": "none", "svg.hashsalt": "metastep", "font.family": "DejaVu Sans", "font.size": 8.5,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6,
    "axes.grid": True, "grid.color": INK, "grid.alpha": 0.12, "grid.linewidth": 0.6,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "figure.facecolor": "none", "axes.facecolor": "none",
}  # fmt: skip
NOTHING_ABOUT_IT = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # else matplotlib writes links and the time


class Drawing(NamedTuple):
    """A figure of the page."""

    title: str
    note: str
    svg: Markup


class Curve(NamedTuple):
    """What is drawn of the rows of one kind, a line for each run."""

    title: str
    note: str
    kind: str
    keys: tuple[str, ...]  # y and its interval
    label: str
    scale: float = 1
    by: str = ""  # other than steps or epochs


ACCURACY = "accuracy, %"
VALIDATION = "validation", ("validation_accuracy", "validation_interval"), ACCURACY, 100
CURVES = {
    "iteration": (
        Curve("Training loss", "On the queries of training tasks, after adaptation.", "train", ("loss",), "loss"),
        Curve("Training accuracy", "On the same queries.", "train", ("accuracy",), ACCURACY, 100),
        Curve("Validation accuracy", "On classes that are not trained on. The band is the 95 % interval.", *VALIDATION),
        Curve("Validation accuracy over time", "The same by seconds of training.", *VALIDATION, "seconds"),
        Curve("Growth of the sweep", "How many times as long it makes gradients. Above 100, they explode.", "train",
              ("growth",), "growth"),
    ),
    "epoch": (
        Curve("Training loss", "On the labels alone; mean of an epoch.", "train", ("cross_entropy",), "loss"),
        Curve("Transfer loss", "How far the target's features are from the source's, before it is multiplied by β.",
              "train", ("transfer_loss",), "transfer loss"),
        Curve("Validation accuracy", "By running statistics. The band is the 95 % interval.", *VALIDATION),
        Curve("Test accuracy", "Never used for a choice: the reported one is where validation was best first.",
              "validation", ("test_accuracy", "test_interval"), ACCURACY, 100),
        Curve("Validation accuracy over time", "The same by seconds of training.", *VALIDATION, "seconds"),
        Curve("Change of the transfer gradient", "Between virtual steps, relative. Small: a gradient can be shared.",
              "gradient_difference", ("gradient_difference",), "relative change"),
    ),
}  # fmt: skip


def drawings(runs: Sequence[Reported]) -> list[Drawing]:
    """Return all figures that there is something to draw for."""
    found = [_curves(each, runs, unit) for unit, each in ((u, c) for u, curves in CURVES.items() for c in curves)]
    return [drawing for drawing in (*found, _by_step(runs), _differences(runs)) if drawing]


def _curves(curve: Curve, runs: Sequence[Reported], unit: str) -> Drawing | None:
    keys = curve.by or {"iteration": "step"}.get(unit, unit), *curve.keys
    lines = []
    for run in runs:
        if run.unit == unit and (points := run.curve(curve.kind, *keys) or run.curve(curve.kind, *keys[:2])):
            lines.append((run, [(x, *(curve.scale * y for y in ys)) for x, *ys in thinned(points)]))
    x = f"{curve.by} of training" if curve.by else unit
    return Drawing(curve.title, curve.note, _lines(lines, x, curve.label)) if lines else None


def _by_step(runs: Sequence[Reported]) -> Drawing | None:
    """After how many adaptation steps a learner is how good"""
    judged = [(run, run.headline) for run in runs]
    lines = [(run, [(s.step, s.accuracy, s.interval) for s in e.by_step]) for run, e in judged
             if isinstance(e, OnEpisodes)]  # fmt: skip
    note = "Of the evaluation of each run. The band is the 95 % interval."
    title = "Accuracy by adaptation step"
    return Drawing(title, note, _lines(lines, "adaptation steps", ACCURACY)) if lines else None


def _differences(runs: Sequence[Reported]) -> Drawing | None:
    """Draw how far the inner gradient changes from step to step."""
    known = [(run, run.asked.differences.numpy()) for run in runs if run.asked]
    known = [(run, values) for run, values in known if (values[np.isfinite(values)] > 0).any()]
    if not known:
        return None

    def draw(axes: Axes) -> None:
        for run, values in known:
            low, middle, high = _quartiles(values)
            steps = np.arange(1, len(middle) + 1)
            axes.fill_between(steps, low, high, color=run.colour, alpha=0.18, linewidth=0)
            axes.plot(steps, middle, color=run.colour, marker="o", markersize=3, linewidth=1.6)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))

    note = "‖∇L(φₜ₊₁) − ∇L(φₜ)‖ / ‖∇L(φₜ₊₁)‖: median and quartiles of tasks. Small: a gradient can be shared."
    return Drawing("Change of the inner gradient", note, drawn(draw, "inner step", "relative change"))


def _quartiles(values: NDArray[np.float64]) -> NDArray[np.float64]:
    finite = np.where(np.isfinite(values), values, np.nan)
    empty = np.isnan(finite).all(0)
    finite[:, empty] = 0  # a column of nothing has no quartiles, and numpy would warn
    quartiles: NDArray[np.float64] = np.nanpercentile(finite, (25, 50, 75), axis=0)
    quartiles[:, empty] = np.nan
    return quartiles


def thinned(points: list[Point]) -> list[Point]:
    """Return no more points than can be seen: means of neighbours."""
    if len(points) <= MOST_POINTS:
        return points
    return [tuple(part.mean(0).tolist()) for part in np.array_split(np.array(points), MOST_POINTS)]


def _lines(lines: Sequence[tuple[Reported, Sequence[Point]]], x: str, y: str) -> Markup:
    def draw(axes: Axes) -> None:
        for run, points in lines:
            columns = np.array(points).T
            if (columns[0] % 1 == 0).all():
                axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
            marker = "o" if len(points) <= MOST_MARKED else None
            axes.plot(*columns[:2], color=run.colour, linewidth=1.6, marker=marker, markersize=3)
            if len(columns) == 3:
                low, high = columns[1] - columns[2], columns[1] + columns[2]
                axes.fill_between(columns[0], low, high, color=run.colour, alpha=0.18, linewidth=0)

    return drawn(draw, x, y)


def drawn(draw: Callable[[Axes], None], x: str, y: str, size: tuple[float, float] = SIZE) -> Markup:
    """Return one pair of axes as SVG."""
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
    """Return the element alone, as wide as its place. All its words are ours: names of runs stand in the page."""
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r' (?:width|height)="[\d.]+pt"| xmlns(?::xlink)?="[^"]*"| version="[^"]*"', "", svg)
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg)  # the same in every figure; only hashes are referred to
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1))


# ---- what the meta-networks of a transfer have learned: λ and the sharpness of the channels' weights


Rows = Sequence[dict[str, Any]]
TITLES = {"where": "λ", "what": "largest w / mean w"}
NOTES = {
    "where": "Where: λ of each pair of layers, how strongly a layer of the source guides a layer of the target.",
    "what": "What: the largest weight of a channel, divided by their mean. At 1 all channels count alike.",
}
TEACHES, LEARNS = "source layer", "target layer"
MOST = 64  # layers of a net
SHADES = LinearSegmentedColormap.from_list("shades", ["#e8f0fb", "#7db1f5", "#1d5fbf", "#0b2f66"])


class Weights(NamedTuple):
    """λ, or how selective w is, of one run."""

    which: str
    epochs: NDArray[np.float64]
    matrix: NDArray[np.float64]  # (epochs, source layers, target layers); NaN where there is no such pair
    sources: list[str]  # layers, with the sizes of their features
    targets: list[str]


def weights_of(rows: Rows, which: str) -> Weights | None:
    """Return what rows of kind "weights" say, whose keys are where_M_N and what_M_N."""
    layers = next((row for row in rows if row.get("kind") == "layers"), {})
    rows = [row for row in rows if row.get("kind") == "weights" and math.isfinite(number(row.get("epoch")))]
    keys = [re.fullmatch(rf"{which}_(\d\d?)_(\d\d?)", key) for key in (rows[-1] if rows else {})]
    places = {key[0]: (int(key[1]), int(key[2])) for key in keys if key}
    places = {key: place for key, place in places.items() if max(place) < MOST}
    if not places:
        return None
    sources, targets = (1 + max(place[axis] for place in places.values()) for axis in (0, 1))
    matrix = np.full((len(rows), sources, targets), np.nan)
    for row, values in zip(rows, matrix, strict=True):
        for key, place in places.items():
            values[place] = number(row.get(key))
    epochs = np.array([number(row["epoch"]) for row in rows])
    if not np.isfinite(matrix[-1]).any():
        return None
    return Weights(which, epochs, matrix, _names(layers, "source", sources), _names(layers, "target", targets))


def _names(row: dict[str, Any], part: str, count: int) -> list[str]:
    """Counted from 0 as in method.pairs; in a picture, a dollar would begin a formula"""
    named = (printable(str(row.get(f"{part}_{i}", ""))).replace("$", r"\$") for i in range(count))
    return [f"{i}: {name}" if name else str(i) for i, name in enumerate(named)]


def draw_curves(axes: Axes, weights: Weights, n: int) -> None:
    """Draw what the target's layer n is taught: a line for each source layer, on one scale for all n."""
    for m, name in enumerate(weights.sources):
        if np.isfinite(weights.matrix[-1, m, n]):
            colour = COLOURS[m % len(COLOURS)]
            axes.plot(weights.epochs, weights.matrix[:, m, n], color=colour, linewidth=1.6, label=name)
    low, high = float(np.nanmin(weights.matrix)), float(np.nanmax(weights.matrix))
    margin = 0.05 * (high - low + 0.1)
    axes.set_ylim(low - margin, high + margin)


def draw_matrix(axes: Axes, weights: Weights) -> None:
    """Draw the last epoch, with its numbers."""
    matrix = weights.matrix[-1]
    axes.grid(False)
    low, high = float(np.nanmin(matrix)), float(np.nanmax(matrix))
    axes.imshow(matrix, cmap=SHADES, vmin=low, vmax=max(high, low + 1e-6), aspect="auto")
    middle = low + 0.4 * (high - low)
    for (m, n), value in np.ndenumerate(matrix):
        if np.isfinite(value):
            axes.text(n, m, f"{value:.2f}", ha="center", va="center", color="white" if value > middle else "black")
    axes.set_xticks(range(matrix.shape[1]), [name.replace(" ", "\n") for name in weights.targets], fontsize=6.5)
    axes.set_yticks(range(matrix.shape[0]), [name.replace(" ", "\n") for name in weights.sources], fontsize=6.5)


class Learned(NamedTuple):
    """One part of what a run has learned, as the page shows it."""

    note: str
    layers: Sequence[tuple[str, str]]
    """Names of the source's layers, with the colours of their lines"""
    drawings: Sequence[Drawing]


def learned(rows: Rows) -> list[Learned]:
    """Return for where and for what: the last matrix, and how each target layer's weights came to it."""
    return [_learned(weights) for which in TITLES if (weights := weights_of(rows, which))]


def _learned(weights: Weights) -> Learned:
    matrix = drawn(lambda axes: draw_matrix(axes, weights), LEARNS, TEACHES, (3.2, 2.4))
    found = [Drawing("After the last epoch", "", matrix)]
    for n, name in enumerate(weights.targets):
        curves = drawn(lambda axes, n=n: draw_curves(axes, weights, n), "epoch", TITLES[weights.which], (3.2, 2.4))  # type: ignore[misc]
        found.append(Drawing(f"Into {name}", "", curves))
    layers = [(name.replace(r"\$", "$"), COLOURS[m % len(COLOURS)]) for m, name in enumerate(weights.sources)]
    return Learned(NOTES[weights.which], layers, found)
