"""Recipes at equal time: a table of all, and a picture of the best of each method."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metastep.core.suggest import RISES
from study import results
from study.bench.plot import COLOURS, STYLE
from study.bench.results import Row

NAMES = {
    "multistep4": "Multi-step(4)",
    "multistep2": "Multi-step(2)",
    "maml": "exact MAML",
    "fomaml": "first order",
    "reptile": "Reptile",
}
LINES = dict(zip(NAMES, ("multi_step4", "multi_step2", "maml", "first_order", "reptile"), strict=True))
SUBJECTS = {
    "omniglot-5w": "Omniglot, 5 ways",
    "omniglot-20w": "Omniglot, 20 ways",
    "cifar_fs-5w": "CIFAR-FS, 5 ways",
    "folder-5w": "own folder, 5 ways",
    "sinusoid": "sine waves (squared error)",
    "mini_imagenet-5w": "miniImageNet, 5 ways",
}
RECIPE = ("lr", "momentum", "clip", "warmup", "ramp", "outer", "schedule")  # what a recipe is made of, besides a method
Recipes = dict[tuple[Any, ...], list[Row]]  # subject, method and recipe -> the runs of all seeds


def recipes(name: str) -> Iterator[str]:
    """Rows: methods and recipes, the best in validation in bold"""
    content = results.read(name)
    groups = grouped(content["rows"])
    best = {id(rows) for rows in best_of_each(groups).values()}
    yield results.caption(content)
    yield "| method | inner rate | momentum | clip | outer rate | runs | iterations | validation, % | test, % | range |"
    yield "|---|---:|---:|---:|---|---:|---:|---:|---:|---|"
    for key, rows in sorted(groups.items(), key=lambda each: (list(NAMES).index(each[0][1]), str(each[0]))):
        _, method, lr, momentum, clip, _, _, outer, schedule = key
        outer_rate = f"{outer:g}" + ("" if schedule == "constant" else f", {schedule}")
        found, iterations = [row["score"] for row in rows], f"{mean(row['iterations'] for row in rows):,.0f}"
        test = f"**{mean(found):.1f}**" if id(rows) in best else f"{mean(found):.1f}"
        cells = [NAMES[method], lr, momentum, clip or "none", outer_rate, len(rows), iterations]
        scores = [f"{validated(rows):.1f}", test, f"{min(found):.1f} to {max(found):.1f}"]
        yield f"| {' | '.join(map(str, [*cells, *scores]))} |"


def best_recipes(name: str) -> Iterator[str]:
    """Rows: data and methods, by the recipe that is best in validation; without clipping where that was tried"""
    content = results.read(name)
    yield results.caption(content)
    yield "| data | method | inner rate | clip | outer rate | runs | seconds | iterations | validation | test | range |"
    yield "|---|---|---:|---:|---|---:|---:|---:|---:|---:|---|"
    for about, groups in by_subject(content["rows"]).items():
        clipped = {key: rows for key, rows in groups.items() if key[4] is not None or key[1] == "reptile"}
        plain = {key: rows for key, rows in groups.items() if key not in clipped}
        for found in (*best_of_each(clipped).values(), *best_of_each(plain).values()):
            yield f"| {SUBJECTS[about]} | {' | '.join(_cells(found))} |"


def _cells(rows: Sequence[Row]) -> Iterator[str]:
    """What a recipe is, and what it reached"""
    first, found = rows[0], [row["score"] for row in rows]
    falls = "" if first["schedule"] == "constant" else f", {first['schedule']}"
    momentum = ", no momentum" if first["method"] == "fomaml" and not first["momentum"] else ""
    yield from (f"{NAMES[first['method']]}{momentum}", f"{first['lr']:g}", str(first["clip"] or "none"))
    yield from (f"{first['outer']:g}{falls}", str(len(rows)), f"{mean(row['seconds'] for row in rows):.0f}")
    yield from (f"{mean(row['iterations'] for row in rows):,.0f}", _score(validated(rows)), _score(mean(found)))
    yield f"{_score(min(found))} to {_score(max(found))}"


def _score(value: float) -> str:
    return f"{value:.3g}"


def outer_rates(name: str) -> Iterator[str]:
    """Rows: data and methods; columns: outer rates. The last validation with the first seed"""
    content = results.read(name)
    yield results.caption(content)
    yield "| data | method | inner rate | 1e-3, not clipped | 3e-3 | 1e-2 | 3e-2 |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    found = {
        (row["subject"], row["method"], row["lr"], row["outer"]): row for row in content["rows"]
        if row["seed"] == 0 and row["momentum"] and row["clip"] in (None, 1.0) and not row["warmup"] + row["ramp"]
        and (row["clip"] is None) == (row["schedule"] == "constant")
    }  # fmt: skip
    for about, method, lr in dict.fromkeys(key[:3] for key in found if (*key[:3], 3e-2) in found):
        rows = [found.get((about, method, lr, outer)) for outer in (1e-3, 3e-3, 1e-2, 3e-2)]
        scores = [_score(validated([row])) if row else "" for row in rows]
        yield f"| {SUBJECTS[about]} | {NAMES[method]} | {lr:g} | {' | '.join(scores)} |"


def clip_values(name: str) -> Iterator[str]:
    """Rows: data; columns: clip values, and what can be done instead. Multi-step(4), means over seeds on the test"""
    content = results.read(name)
    yield results.caption(content)
    kinds = {
        "none": (None, 0, 0), **{f"{clip:g}": (clip, 0, 0) for clip in (0.1, 0.3, 1.0, 3.0, 10.0)},
        "warm-up": (None, 100, 0), "ramp": (None, 0, 100),
    }  # fmt: skip
    yield f"| data | inner rate | {' | '.join(kinds)} |"
    yield f"|---|---:|{'---:|' * len(kinds)}"
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in content["rows"]:
        if (row["method"], row["outer"], row["schedule"]) == ("multistep4", 1e-2, "linear"):
            key = (row["subject"], row["lr"], (row["clip"], row["warmup"], row["ramp"]))
            found.setdefault(key, []).append(row)
    for about, lr in dict.fromkeys(key[:2] for key in found if key[2] == (0.1, 0, 0)):
        each = [found.get((about, lr, kind)) for kind in kinds.values()]
        scores = [f"{_score(mean(row['score'] for row in rows))} ({len(rows)})" if rows else "" for rows in each]
        yield f"| {SUBJECTS[about]} | {lr:g} | {' | '.join(scores)} |"


def in_a_minute(name: str) -> Iterator[str]:
    """Rows: the outer rates that were tried, and the runs of the one that was best in validation"""
    content = results.read(name)
    yield results.caption(content)
    yield "| outer rate | seed | seconds | iterations | validation, % | test, % | 95 % interval |"
    yield "|---:|---:|---:|---:|---:|---:|---:|"
    for row in content["rows"]:
        cells = f"{row['outer']:g}", row["seed"], f"{row['seconds']:.0f}", f"{row['iterations']:,}"
        scores = f"{validated([row]):.1f}", f"{row['score']:.1f}", f"± {row['interval']:.1f}"
        yield f"| {' | '.join(map(str, (*cells, *scores)))} |"


def by_subject(rows: Sequence[Row]) -> dict[str, Recipes]:
    """Return the runs of each recipe that all methods were tried with, by what they were trained on."""
    known = [row for row in rows if row["clip"] == 1 or row["schedule"] == "constant" or row["method"] == "reptile"]
    return {about: grouped([row for row in known if row["subject"] == about]) for about in SUBJECTS}


def grouped(rows: Sequence[Row]) -> Recipes:
    """Return the runs of each recipe."""
    groups: Recipes = {}
    for row in rows:
        groups.setdefault((row["subject"], row["method"], *(row[part] for part in RECIPE)), []).append(row)
    return groups


def validated(rows: Sequence[Row]) -> float:
    """Return the last validation of a recipe, the mean over seeds; NaN where a run stopped before it."""
    return mean(float(row["validation"][-1]["score"]) if row["validation"] else math.nan for row in rows)


def best_of_each(groups: Mapping[tuple[Any, ...], list[Row]]) -> dict[str, list[Row]]:
    """Return for each method the recipe that is best on validation classes, of those with more than one run if any."""
    of = {method: [rows for key, rows in groups.items() if key[1] == method] for method in NAMES}
    repeated = {method: [rows for rows in found if len(rows) > 1] or found for method, found in of.items()}
    return {method: max(found, key=_quality) for method, found in repeated.items() if found}


def _quality(rows: Sequence[Row]) -> float:
    """The higher, the better"""
    score = validated(rows)
    return -math.inf if math.isnan(score) else score if rows[0]["measure"] == "accuracy" else -score


LISTS = {1: "first list", 2: "second list", 3: "third list, run when the rule stood"}


def stable_windows(name: str) -> Iterator[str]:
    """Rows: inner loops; the longest stable window by the rule, and as measured"""
    content = results.read(name)
    yield results.caption(content)
    yield "| inner loop | steps | largest curvature, at step | longest window by the rule | measured |"
    yield "|---|---:|---|---:|---:|"
    for number, title in LISTS.items():
        rows = [row for row in content["rows"] if row["list"] == number]
        yield f"| **{title}** | | | {_hits(rows)} | |"
        for row in rows:
            curvatures = ", ".join(f"{curvature:.3g} at {step}" for step, curvature in row["curvatures"])
            yield f"| {row['loop']} | {row['steps']} | {curvatures} | {row['rule']} | {row['outcome']} |"


def _hits(rows: Sequence[Row]) -> str:
    """Say how often the rule was right or one too strict, where the curvature rises and where it does not."""
    steady, rising = ([row for row in rows if _rises(row) == rises] for rises in (False, True))

    def good(some: Sequence[Row]) -> int:
        return sum(row["outcome"] - 1 <= row["rule"] <= row["outcome"] for row in some)

    return f"good on {good(steady)} of {len(steady)} steady, {good(rising)} of {len(rising)} rising"


def _rises(row: Row) -> bool:
    (_, first), (_, last) = row["curvatures"][0], row["curvatures"][-1]
    return bool(last > RISES * first)


# ---- pictures

Curves = Mapping[str, tuple[str, str, list[Row]]]  # label -> colour, line and runs


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Draw accuracy against seconds for the best recipe of each method: on Omniglot, and on the rest side by side."""
    best = {about: _best_curves(groups) for about, groups in by_subject(rows).items() if groups}
    first = next(iter(SUBJECTS))
    if first in best:
        _draw({"": best.pop(first)}, folder / "accuracy-against-seconds.svg")
    if best:
        _draw({SUBJECTS[about]: curves for about, curves in best.items()}, folder / "recipes-elsewhere.svg")


def draw_all_of_multistep4(rows: Sequence[Row], folder: Path) -> None:
    """Draw accuracy against seconds for every recipe of Multi-step(4)."""
    of_four = {_named(key): (*_line(key), found) for key, found in grouped(rows).items() if key[1] == "multistep4"}
    _draw({"": of_four}, folder / "recipes-multistep4.svg")


def _best_curves(groups: Recipes) -> Curves:
    return {NAMES[method]: (COLOURS[LINES[method]], "-", found) for method, found in best_of_each(groups).items()}


def _named(key: tuple[Any, ...]) -> str:
    _, _, lr, _, clip, *_, schedule = key
    how = "as it is" if clip is None else "clipped" if schedule == "constant" else "clipped, outer rate 3e-3 that falls"
    return f"inner rate {lr}, {how}"


def _line(key: tuple[Any, ...]) -> tuple[str, str]:
    _, _, lr, _, clip, *_, schedule = key
    colour = "#7f7f7f" if clip is None else "#1f77b4" if schedule == "constant" else COLOURS["multi_step4"]
    return colour, "-" if lr == 0.1 else "--"


def _draw(panels: Mapping[str, Curves], picture: Path) -> None:
    """A panel for each, of two in a row"""
    columns = min(2, len(panels))
    height = -(-len(panels) // columns)
    with mpl.rc_context(STYLE):
        figure = Figure((6.4, 3.8) if columns == 1 else (8.0, 3.0 * height), layout="constrained")
        grid = figure.subplots(height, columns, squeeze=False)
        for axes, (title, curves) in zip(grid.flat, panels.items(), strict=False):
            _draw_curves(axes, curves)
            axes.set_title(title, loc="left")
            if columns > 1:
                axes.legend(frameon=False, fontsize=6)
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        if columns == 1:
            figure.legend(loc="outside lower center", ncols=2, frameon=False)
        figure.savefig(picture, metadata={"Date": None})


def _draw_curves(axes: Axes, curves: Curves) -> None:
    """A line for each, the mean over seeds, in a band from the lowest to the highest"""
    in_percent = next(iter(curves.values()))[2][0]["measure"] == "accuracy"
    for label, (colour, line, rows) in sorted(curves.items(), key=lambda each: -_quality(each[1][2])):
        points = list(zip(*(row["validation"] for row in rows), strict=True))
        seconds = [mean(each["seconds"] for each in point) for point in points]
        scores = [[each["score"] for each in point] for point in points]
        axes.fill_between(seconds, list(map(min, scores)), list(map(max, scores)), color=colour, alpha=0.15, lw=0)
        last = f"{mean(scores[-1]):.0f} %" if in_percent else f"{mean(scores[-1]):.2g}"
        axes.plot(seconds, list(map(mean, scores)), line, color=colour, linewidth=1.4, label=f"{label}: {last}")
    measure = "accuracy on validation classes, %" if in_percent else "squared error on validation tasks"
    axes.set(xlabel="seconds of training on one core", ylabel=measure, xlim=(0, None))
