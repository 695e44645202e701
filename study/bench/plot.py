"""Rows as a picture: for each setting, time and memory against inner steps, and the alternatives as bars."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from metastep.errors import how_many
from study.bench.cases import STANDARD_STEPS, Case
from study.bench.plan import in_order
from study.bench.results import Row, case_of

OURS = "metastep"
COLOURS = {
    "maml": "#1f77b4", "multi_step": "#d62728", "multi_step2": "#ff9896", "multi_step4": "#d62728",
    "multi_step3": "#e377c2", "multi_step8": "#8c1c1c", "first_order": "#2ca02c", "reptile": "#7f7f7f",
    "imaml": "#9467bd", "hf_maml": "#17becf", "ggs_maml": "#bcbd22", "es_maml": "#8c564b",
    "scratch": "#7f7f7f", "baseline": "#1f77b4",
}  # fmt: skip
STYLE: Any = {
    "svg.hashsalt": "metastep", "font.size": 8, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.alpha": 0.2,
}  # fmt: skip
Panel = Callable[[Axes, Sequence[Row]], None]


def plot(rows: Iterable[Row], device: str, path: Path) -> None:
    measured = sorted((row for row in rows if row["ms"] is not None), key=lambda row: in_order(case_of(row)))
    groups = list(dict.fromkeys((row["setting"], row["tasks"]) for row in measured))
    if not groups:
        return
    with mpl.rc_context(STYLE):
        figure = Figure((12, 3.2 * len(groups)), layout="constrained")
        grid = figure.subplots(len(groups), 3, squeeze=False)
        for axes, (setting, tasks) in zip(grid, groups, strict=True):
            those = [row for row in measured if (row["setting"], row["tasks"]) == (setting, tasks)]
            panels: tuple[Panel, ...] = (against_steps("ms", "ms"), against_steps("peak_mib", "MiB"), bars)
            for panel, ax in zip(panels, axes, strict=True):
                panel(ax, those)
            axes[0].set_title(f"{setting}, {how_many(tasks, 'task')}", loc="left")
        figure.suptitle(f"One meta-iteration on {device}")
        figure.savefig(path, metadata={"Date": None})


def against_steps(quantity: str, unit: str) -> Panel:
    def panel(axes: Axes, rows: Sequence[Row]) -> None:
        ours = [(case_of(row), row[quantity]) for row in rows if row["implementation"] == OURS]
        for method in dict.fromkeys(case.method_label for case, _ in ours):
            points = [(case.steps, value) for case, value in ours if case.method_label == method]
            axes.plot(
                *zip(*points, strict=True), "o-", color=COLOURS[method], label=method, markersize=3, linewidth=1.2
            )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        readable(axes.yaxis, [value for _, value in ours])
        axes.set(xlabel="inner steps", ylabel=f"{unit}, {OURS}")
        if ours:
            axes.legend(fontsize=6, frameon=False)

    return panel


def bars(axes: Axes, rows: Sequence[Row]) -> None:
    """The implementations at the standard number of steps, or at the largest that there is"""
    steps = {row["steps"] for row in rows}
    number = STANDARD_STEPS if STANDARD_STEPS in steps else max(steps)
    names = list(dict.fromkeys(row["implementation"] for row in rows))
    compared: dict[Case, float] = {case_of(row): row["ms"] for row in rows if row["steps"] == number}
    others = {case.method_label for case in compared if case.implementation != OURS}
    shown = [case for case in compared if case.method_label in others] or list(compared)
    for i, case in enumerate(shown):
        alpha = 1.0 if case.implementation == OURS else 0.25 + 0.5 / (1 + names.index(case.implementation))
        axes.barh(i, compared[case], color=COLOURS[case.method_label], alpha=alpha)
        axes.text(compared[case], i, f" {told(compared[case])}", va="center", fontsize=6)
    axes.set_yticks(range(len(shown)), [f"{case.method_label}, {case.implementation}" for case in shown], fontsize=6)
    axes.invert_yaxis()
    readable(axes.xaxis, list(compared.values()))
    axes.set(xlabel=f"ms at {number} inner steps")


def told(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def readable(axis: Axis, values: Sequence[float]) -> None:
    """Draw from zero if all values are of one size, else on a logarithmic axis."""
    along = axis.axes
    if not values or min(values) <= 0 or max(values) < 4 * min(values):
        (along.set_ylim if axis is along.yaxis else along.set_xlim)(0)
        return
    (along.set_yscale if axis is along.yaxis else along.set_xscale)("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
