"""What the meta-networks have learned: λ and the sharpness of the channels' weights, source by target, over epochs."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from metastep.data.errors import printable
from metastep.report.figures import SIZE, STYLE, drawn
from metastep.train.io import explained

Which = Literal["where", "what"]
Rows = Sequence[dict[str, Any]]
TITLES: dict[Which, str] = {"where": "where: λ", "what": "what: largest w / mean w"}
TEACHES, LEARNS = "source layer, teaches", "target layer, learns"
BLACK: Any = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "black")


class Weights(NamedTuple):
    """Of one run, over epochs"""

    title: str
    epochs: NDArray[np.float64]
    matrix: NDArray[np.float64]  # (epochs, source layers, target layers); NaN where there is no such pair
    sources: list[str]  # layers, with the sizes of their features
    targets: list[str]


def weights_of(rows: Rows, which: Which) -> Weights | None:
    """From rows of kind "weights", whose keys are where_M_N and what_M_N"""
    names: dict[str, Any] = next((row for row in rows if row.get("kind") == "layers"), {})
    rows = [row for row in rows if row.get("kind") == "weights"]
    places = {key: (int(m), int(n)) for key, m, n in _keys(rows, which)}
    if not places:
        return None
    sources, targets = (1 + max(place[axis] for place in places.values()) for axis in (0, 1))
    matrix = np.full((len(rows), sources, targets), np.nan)
    for row, values in zip(rows, matrix, strict=True):
        for key, place in places.items():
            values[place] = row[key]
    epochs = np.array([row["epoch"] for row in rows], float)
    return Weights(TITLES[which], epochs, matrix, _names(names, "source", sources), _names(names, "target", targets))


def _keys(rows: Rows, which: Which) -> list[tuple[str, str, str]]:
    found = [(key, re.fullmatch(rf"{which}_(\d+)_(\d+)", key)) for key in (rows[-1] if rows else {})]
    return [(key, match[1], match[2]) for key, match in found if match]


def _names(row: dict[str, Any], part: str, number: int) -> list[str]:
    """Counted from 0 as in --pairs; in a picture, a dollar would begin a formula"""
    named = (printable(str(row.get(f"{part}_{i}", ""))).replace("$", r"\$") for i in range(number))
    return [f"{i}: {name}" if name else str(i) for i, name in enumerate(named)]


def draw_curves(axes: Axes, weights: Weights, n: int) -> None:
    """What the target's layer n is taught: a line for each source layer, on one scale for all n"""
    for m, name in enumerate(weights.sources):
        if np.isfinite(weights.matrix[-1, m, n]):
            axes.plot(weights.epochs, weights.matrix[:, m, n], color=f"C{m}", linewidth=1.4, label=name)
    low, high = float(np.nanmin(weights.matrix)), float(np.nanmax(weights.matrix))
    margin = 0.05 * (high - low + 0.1)
    axes.set_ylim(low - margin, high + margin)


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
    axes.set_xticks(range(matrix.shape[1]), [name.replace(" ", "\n") for name in weights.targets], fontsize=6.5)
    axes.set_yticks(range(matrix.shape[0]), [name.replace(" ", "\n") for name in weights.sources], fontsize=6.5)


def weight_figures(rows: Rows) -> list[tuple[str, str, Markup]]:
    """(title, note, SVG): for where and what, the last matrix, and how each target layer's weights came to it"""
    found = []
    for which in TITLES:
        if weights := weights_of(rows, which):
            matrix = drawn(_drawing(draw_matrix, weights), LEARNS, TEACHES, (SIZE[0], 2.8))
            found.append((weights.title, "After the last epoch.", matrix))
            for n, name in enumerate(weights.targets):
                curves = drawn(_drawing(_draw_with_legend, weights, n), "epoch", weights.title)
                found.append((f"{weights.title} into {name}", "A line for each source layer.", curves))
    return found


def _drawing(draw: Callable[..., None], *what: Any) -> Callable[[Axes], None]:
    return lambda axes: draw(axes, *what)


def _draw_with_legend(axes: Axes, weights: Weights, n: int) -> None:
    draw_curves(axes, weights, n)
    axes.legend(fontsize=6.5, frameon=False)


def save_weights_picture(runs: Sequence[tuple[str, Rows]], path: Path) -> bool:
    """All of it in one picture, a row for where and one for what of each run; false where none has meta-networks"""
    shown = [(name, found) for name, rows in runs for which in TITLES if (found := weights_of(rows, which))]
    if not shown:
        return False
    columns = 1 + max(weights.matrix.shape[2] for _, weights in shown)
    with mpl.rc_context({**STYLE, **BLACK, "figure.facecolor": "white"}):
        figure = Figure((2.9 * columns, 2.4 * len(shown)), layout="constrained", dpi=110)
        grid = figure.subplots(len(shown), columns, squeeze=False)
        for row, (name, weights) in zip(grid, shown, strict=True):
            _draw_row(row, name, weights)
        with explained(path, "written"):
            figure.savefig(path)
    return True


def _draw_row(row: NDArray[Any], name: str, weights: Weights) -> None:
    """First where it ended, then how it came there"""
    draw_matrix(row[0], weights)
    row[0].set(xlabel=LEARNS, ylabel=TEACHES)
    row[0].set_title(f"{name}\n{weights.title}, last epoch", fontsize=9, fontweight="bold")
    for axes, n in zip(row[1:], range(len(weights.targets)), strict=False):
        draw_curves(axes, weights, n)
        axes.set_xlabel("epoch")
        axes.set_title(f"into target layer\n{weights.targets[n]}", fontsize=9)
    row[1].set_ylabel(weights.title)
    row[1].legend(title="from source layer", fontsize=6.5, title_fontsize=6.5, frameon=False)
    for axes in row[1 + len(weights.targets) :]:
        axes.set_axis_off()
