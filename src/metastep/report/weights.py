"""What the meta-networks have learned: λ and the sharpness of the channels' weights, source by target, over epochs."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from metastep.report.figures import STYLE, drawn
from metastep.runs.files import explained

Which = Literal["where", "what"]
TITLES: dict[Which, str] = {"where": "where: λ", "what": "what: largest weight of a channel"}


class Weights(NamedTuple):
    """Of one run, over epochs"""

    epochs: NDArray[np.float64]
    matrix: NDArray[np.float64]  # (epochs, source layers, target layers); NaN where there is no such pair


def weights_of(rows: Sequence[dict[str, Any]], which: Which) -> Weights | None:
    """From rows of kind "weights", whose keys are where_M_N and what_M_N"""
    rows = [row for row in rows if row.get("kind") == "weights"]
    places = {key: (int(m), int(n)) for key, m, n in _keys(rows, which)}
    if not places:
        return None
    shape = tuple(1 + max(place[axis] for place in places.values()) for axis in (0, 1))
    matrix = np.full((len(rows), *shape), np.nan)
    for row, values in zip(rows, matrix, strict=True):
        for key, place in places.items():
            values[place] = row[key]
    return Weights(np.array([row["epoch"] for row in rows], float), matrix)


def _keys(rows: Sequence[dict[str, Any]], which: Which) -> list[tuple[str, str, str]]:
    found = [(key, re.fullmatch(rf"{which}_(\d+)_(\d+)", key)) for key in (rows[-1] if rows else {})]
    return [(key, match[1], match[2]) for key, match in found if match]


def draw_curves(axes: Axes, weights: Weights) -> None:
    """A line for each pair: colour by source layer, dashes by target layer"""
    for m in range(weights.matrix.shape[1]):
        for n in range(weights.matrix.shape[2]):
            if np.isfinite(weights.matrix[-1, m, n]):
                label = f"{m}→{n}"
                style = ("-", "--", "-.", ":", (0, (1, 3)))[n % 5]
                axes.plot(
                    weights.epochs, weights.matrix[:, m, n], color=f"C{m}", linestyle=style, linewidth=1.2, label=label
                )
    low, high = float(np.nanmin(weights.matrix)), float(np.nanmax(weights.matrix))
    room = 0.09 * weights.matrix.shape[2] * (high - low + 0.1)  # for the legend, above the lines
    axes.set_ylim(low - 0.05 * (high - low + 0.1), high + room)
    axes.legend(fontsize=6.5, ncols=weights.matrix.shape[1], frameon=False, handlelength=2.2, loc="upper center")


def draw_matrix(axes: Axes, weights: Weights) -> None:
    """The last epoch, with its numbers"""
    matrix = weights.matrix[-1]
    axes.grid(False)
    low, high = float(np.nanmin(matrix)), float(np.nanmax(matrix))
    axes.imshow(matrix, cmap="viridis", vmin=low, vmax=max(high, low + 1e-6), aspect="auto")
    middle = (low + high) / 2
    for (m, n), value in np.ndenumerate(matrix):
        if np.isfinite(value):
            axes.text(n, m, f"{value:.2f}", ha="center", va="center", color="black" if value > middle else "white")
    axes.set_xticks(range(matrix.shape[1]), [str(n) for n in range(matrix.shape[1])])
    axes.set_yticks(range(matrix.shape[0]), [str(m) for m in range(matrix.shape[0])])


def weight_figures(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str, Markup]]:
    """(title, note, SVG): for where and what, the curves and the last matrix"""
    found = []
    for which, title in TITLES.items():
        if weights := weights_of(rows, which):
            curves = drawn(lambda axes, w=weights: draw_curves(axes, w), "epoch", title)  # type: ignore[misc]
            matrix = drawn(lambda axes, w=weights: draw_matrix(axes, w), "target layer", "source layer")  # type: ignore[misc]
            found += [
                (title, "A line for each pair, source→target, counted from 0 as in --pairs.", curves),
                (title, "After the last epoch.", matrix),
            ]
    return found


def save_weights_picture(runs: Sequence[tuple[str, Sequence[dict[str, Any]]]], path: Path) -> bool:
    """All of it in one picture, a row for each (name, rows) that has meta-networks; false where none has"""
    shown = [(name, where, weights_of(rows, "what")) for name, rows in runs if (where := weights_of(rows, "where"))]
    if not shown:
        return False
    with mpl.rc_context({**STYLE, "text.color": "black", "axes.labelcolor": "black", "axes.edgecolor": "black",
                         "xtick.color": "black", "ytick.color": "black", "figure.facecolor": "white"}):  # fmt: skip
        figure = Figure((13, 2.9 * len(shown)), layout="constrained", dpi=110)
        grid = figure.subplots(len(shown), 4, squeeze=False)
        for row, (name, where, what) in zip(grid, shown, strict=True):
            for axes, weights, title in ((row[:2], where, TITLES["where"]), (row[2:], what, TITLES["what"])):
                if weights is not None:
                    draw_curves(axes[0], weights)
                    draw_matrix(axes[1], weights)
                axes[0].set(xlabel="epoch", ylabel=title, title=name)
                axes[1].set(xlabel="target layer", ylabel="source layer", title="after the last epoch")
        with explained(path, "written"):
            figure.savefig(path)
    return True
