"""Figures in the form of the paper's, from the files that the claims are judged by."""

import statistics
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metastep.train.config import Transfer
from study.bench.cases import PAPER_SETTINGS, target_of
from study.bench.plot import COLOURS, STYLE
from study.bench.results import Row, case_of
from study.claims.fewshot_costs import with_more_steps
from study.claims.outcomes import Outcome
from study.claims.transfer_costs import BySteps, Epochs, seconds_of_epoch
from study.targets import config_of

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
ABLATIONS = {  # a preset's last word: what the paper calls it; T and how many virtual steps share a gradient
    "t0": ("0-step", (0, 1)),
    "t1": ("1-step", (1, 1)),
    "1step-2lr": ("1-step 2·lr", (1, 1)),
    "baseline": ("2-step", (2, 1)),
    "multistep": ("2-step est.", (2, 2)),
    "t3": ("3-step", (3, 1)),
    "3step-estimate": ("3-step est.", (3, 3)),
}


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
    """Draw how the transfer gradient changes in a virtual step over a run, and the rate of these steps."""
    config = run.config
    assert isinstance(config, Transfer)  # no others look
    with mpl.rc_context(STYLE):
        figure = Figure((5, 2.8), layout="constrained")
        axes = figure.subplots()
        epochs, changes = zip(*run.gradient_differences, strict=True)
        axes.plot(epochs, changes, color=COLOURS["maml"], linewidth=0.8)
        rates = [config.rate(int(epoch)) / config.inner.lr for epoch in epochs]
        axes.plot(epochs, rates, color="grey", linestyle="--", linewidth=0.8, label="rate / first rate")
        axes.legend(fontsize=6, frameon=False)
        axes.set(xlabel="epoch", ylabel="‖∇L(φ₁) − ∇L(φ₀)‖ / ‖∇L(φ₁)‖", title=run.preset)
        axes.set_ylim(0)
        figure.savefig(picture, metadata={"Date": None})


def draw_epochs(epochs: Epochs, picture: Path) -> None:
    """Seconds of an epoch of each target, and what Multi-step saves; small pictures and large ones by themselves"""
    groups = [[t for t in epochs.seconds if (config_of(t).data.size > SMALL) is large] for large in (False, True)]
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


def draw_ablations(runs: dict[str, tuple[Outcome, ...]], times: BySteps | None, picture: Path) -> None:
    """Accuracy of ways to take virtual steps, over seeds, and what an epoch of each takes, where that was measured"""
    shown = {name: each for name, each in ABLATIONS.items() if name in runs}
    with mpl.rc_context(STYLE):
        figure = Figure((7, 2.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        for place, (name, (_, steps)) in enumerate(shown.items()):
            tests = [each.accuracy for each in runs[name]]
            spread = statistics.stdev(tests) if len(tests) > 1 else 0
            colour = COLOURS["multi_step2" if steps[1] > 1 else "maml"]
            left.errorbar(place, statistics.fmean(tests), spread, fmt="o", color=colour, capsize=3)
            if times and steps in times.rows:
                right.bar(place, seconds_of_epoch(times.rows[steps], target_of(times.setting)), 2 * WIDTH, color=colour)
        left.set(ylabel="accuracy, %", title="mean and deviation over seeds")
        right.set(ylabel="s / epoch", title=f"{times.setting} on {times.device}" if times else "not measured yet")
        for axes in (left, right):
            axes.set_xlim(-0.6, len(shown) - 0.4)
            axes.set_xticks(range(len(shown)), [title for title, _ in shown.values()], rotation=30, ha="right")
        figure.savefig(picture, metadata={"Date": None})


def _against_steps(axes: Axes, rows: list[Row], quantity: str) -> None:
    for method, title in TITLES.items():
        points = sorted((row["steps"], row[quantity]) for row in rows if case_of(row).method_label == method)
        if points:
            steps, values = zip(*points, strict=True)
            axes.plot(steps, values, "o-", color=COLOURS[method], label=title, markersize=3, linewidth=1.2)
    axes.set_xticks(range(1, MOST_STEPS + 1))
    axes.set_ylim(0)
