"""Tables of what studies of runs wrote. A file that is not there has none."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from statistics import fmean

from study import results
from study.bench.results import Row
from study.tables.bench_tables import heading, line

NEAR = 0.9  # of the best accuracy
LEARNED = 1.5  # times chance


def told(name: str) -> list[Row]:
    """Rows with something to tell: not those of a run that has not come to its first validation"""
    return [row for row in results.read_if_there(name)["rows"] if row.get("curve", True)]


def table(name: str, titles: Sequence[str], words: int, cells: Callable[[Row], Sequence[str]]) -> Iterator[str]:
    """`words`: how many of the titles are not above numbers"""
    if rows := told(name):
        yield results.caption(results.read(name))
        yield from heading(*titles, words=words)
        yield from (line(*cells(row)) for row in rows)


def validated(name: str, titles: Sequence[str], cells: Callable[[Row], Sequence[str]]) -> Iterator[str]:
    """Of trials, by three words each"""
    yield from table(name, titles, 3, cells)
    yield from picture(name, "validation accuracy against iterations")


def best_of(row: Row) -> float:
    best: float = max(accuracy for _, accuracy in row["curve"])
    return best


def towards_the_end(row: Row) -> float:
    """The mean of the last fifth: the best of many is as much luck as it is learning"""
    return fmean(accuracy for _, accuracy in row["curve"][-max(1, len(row["curve"]) // 5) :])


def same_path(name: str) -> Iterator[str]:
    titles = "method", "run", "seconds", "losses apart by", "apart after", "accuracy, %", "±", "less plain", "±"

    def cells(row: Row) -> list[str]:
        loss = [f"{row['distance']:.3f}", str(row["together_for"])]
        better = [f"{row['difference']:+.1f}", f"{row['difference_interval']:.1f}"]
        found = [*loss, f"{row['accuracy']:.1f}", f"{row['interval']:.1f}", *better]
        return [
            row["method"], row["run"], f"{row['seconds']:.0f}", *(_blank(found) if row["run"] == "plain" else found)
        ]  # fmt: skip

    yield from table(name, titles, 2, cells)
    yield from picture(name, "losses of the three runs")


def _blank(cells: Sequence[str]) -> list[str]:
    """The plain run has no distance from itself"""
    return ["", "", *cells[2:4], "", ""]


def same_transfer(name: str) -> Iterator[str]:
    parts = "gradient", "statistics", "meta_gradient", "loss"
    titles = "method", "precision", "run", "how", *(part.replace("_", "-") for part in parts)

    def cells(row: Row) -> list[str]:
        about = row["method"], row["precision"], row["run"], row["note"]
        return [*about, *(f"{row['errors'][part]:.1e}" for part in parts)]

    yield from table(name, titles, 4, cells)


def starts(name: str) -> Iterator[str]:
    titles = (
        "setting", "method", "head", "iterations", "accuracy, %", "±", "near the best after", "first meta-gradient",
        "loss before, after", "ways predicted", "features moved",
    )  # fmt: skip

    def cells(row: Row) -> list[str]:
        first = f"{_number(row['loss_before'], '.2f')}, {_number(row['loss_after'], '.2f')}"
        return [
            row["setting"], row["method"], row["head"], f"{row['iterations']:,}", f"{row['curve'][-1][1]:.1f}",
            f"{row['interval']:.1f}", near(row, told(name)), _number(row["gradient_norm"], ".3g"), first,
            _number(row["ways_predicted"], ".0%"), _number(row["features_moved"], ".2g"),
        ]  # fmt: skip

    yield from validated(name, titles, cells)


def variations(name: str) -> Iterator[str]:
    titles = "setting", "method", "what is varied", "iterations", "accuracy, %", "±", "best, %"

    def cells(row: Row) -> list[str]:
        return [
            row["setting"], row["method"], row["change"], f"{row['iterations']:,}", f"{row['curve'][-1][1]:.1f}",
            f"{row['interval']:.1f}", f"{best_of(row):.1f}",
        ]  # fmt: skip

    yield from validated(name, titles, cells)


def transfer_choices(name: str) -> Iterator[str]:
    words = "data", "method", "what is varied"
    titles = *words, "epochs", "last fifth of validations, %", "best, %", "in epoch", "test then, %", "at the end, %"

    def cells(row: Row) -> list[str]:
        return [
            row["setting"], row["method"], row["change"], str(row["epochs"]), f"{towards_the_end(row):.1f}",
            f"{best_of(row):.1f}", str(row["best_epoch"]), f"{row['test']:.2f}", f"{row['last_test']:.2f}",
        ]  # fmt: skip

    yield from validated(name, titles, cells)


def heads(name: str) -> Iterator[str]:
    titles = (
        "setting", "method", "rows apart: median", "most", "accuracy, %", "±", "after one step",
        "head from zero", "gain", "±", "after one step",
    )  # fmt: skip

    def cells(row: Row) -> list[str]:
        return [
            row["setting"], row["method"], f"{row['median_apart']:.2f}", f"{row['most_apart']:.2f}",
            f"{row['accuracy']:.1f}", f"{row['interval']:.1f}", _if_there(row["early"]), f"{row['from_zero']:.1f}",
            f"{row['gain']:+.1f}", f"{row['gain_interval']:.1f}", _if_there(row["early_from_zero"]),
        ]  # fmt: skip

    yield from table(name, titles, 2, cells)


def compared_learners(name: str) -> Iterator[str]:
    """A line for each learner, with the cosine of each method"""
    if rows := told(name):
        methods = list(dict.fromkeys(row["method"] for row in rows))
        yield results.caption(results.read(name))
        yield from heading("learner", "inner rate", *methods, words=1)
        for run, of in groupby(rows, itemgetter("run")):
            found = {row["method"]: row for row in of}
            rate = f"{found[methods[0]]['inner_rate']:g}"
            yield line(run.removesuffix("-seed0"), rate, *(f"{found[method]['cosine']:.3f}" for method in methods))


def _if_there(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def near(row: Row, rows: Sequence[Row]) -> str:
    """Iterations to NEAR of the best accuracy that any start reached in its setting, by its method; none by chance"""
    alike = [other for other in rows if (other["setting"], other["method"]) == (row["setting"], row["method"])]
    best = max(map(best_of, alike))
    enough = max(NEAR * best, LEARNED * 100 / row["ways"])
    return next((f"{step:,}" for step, accuracy in row["curve"] if accuracy >= enough), "")


def _number(value: float | None, form: str) -> str:
    return "not finite" if value is None else format(value, form)


def picture(name: str, what: str) -> Iterator[str]:
    path = results.picture_of(name.partition("/")[2])
    if path.is_file():
        yield f"\n![{what}](figures/{path.name})"


def kills(name: str) -> Iterator[str]:
    """Rows: presets; how many deaths their runs survived"""
    content = results.read(name)
    yield results.caption(content)
    yield "| preset | iterations | deaths by kill -9 | runs | equal to one left alone, bit for bit |"
    yield "|---|---:|---:|---:|---:|"
    for row in content["rows"]:
        yield f"| {row['preset']} | {row['iterations']} | {row['kills']} | {row['runs']} | {row['equal']} |"


def records(name: str) -> Iterator[str]:
    """One row: where the seconds of a run went"""
    content = results.read(name)
    yield results.caption(content)
    yield "| preset | iterations | seconds | of them in checkpoints | in rows and the progress line | together |"
    yield "|---|---:|---:|---:|---:|---:|"
    for row in content["rows"]:
        spent = f"{row['checkpoints']:.2f} | {row['records']:.2f} | {100 * row['share']:.2f} %"
        yield f"| {row['preset']} | {row['iterations']:,} | {row['seconds']:.0f} | {spent} |"
