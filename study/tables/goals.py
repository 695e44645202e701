"""What the engine is to reach, and what was measured: generated, so that nobody can say reached before it is."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from study import results
from study.bench.cases import STANDARD, STANDARD_STEPS, Case
from study.tables.bench_tables import OURS, heading, line, measured

GPU, TRANSFER, STARTUP, CPU = (f"bench/{name}" for name in ("h200-bench", "h200-transfer", "h200-startup", "cpu-bench"))
Found = Callable[[], float | None]  # None where it was not measured

LARGEST = "omniglot-20w5s"


class Goal(NamedTuple):
    what: str
    most: float
    unit: str
    found: Found


def ours(what: str, file: str, setting: str, method: str, steps: int = STANDARD_STEPS) -> Found:
    asked = setting, method, steps, OURS

    def found() -> float | None:
        for case, row in measured(file)[1].items():
            if (case.setting, case.method_label, case.steps, case.implementation) == asked:
                return float(row[what])
        return None

    return found


ms, mib = partial(ours, "ms"), partial(ours, "peak_mib")


def ratio(one: Found, other: Found) -> Found:
    def found() -> float | None:
        above, below = one(), other()
        return above / below if above and below else None

    return found


def seconds(kind: str) -> Found:
    def found() -> float | None:
        return next((row[kind] for row in results.read_if_there(STARTUP)["rows"] if row["setting"] == STANDARD), None)

    return found


def fastest_alternative(what: str) -> Found:
    """Return the fastest alternative of MAML on a CPU. learn2learn's inner steps have no momentum to keep."""

    def is_one(case: Case) -> bool:
        here = (case.setting, case.method_label, case.steps) == (STANDARD, "maml", STANDARD_STEPS)
        return here and not case.implementation.startswith((OURS, "learn2learn"))

    def found() -> float | None:
        rows = [row for case, row in measured(CPU)[1].items() if is_one(case)]
        return min(rows, key=lambda row: row["ms"])[what] if rows else None

    return found


GOALS = (
    *(
        Goal(f"5-way 1-shot, {method}", most, "ms", ms(GPU, STANDARD, method))
        for method, most in {
            "maml": 5, "multi_step2": 3, "multi_step4": 2, "multi_step8": 1.5, "first_order": 2,
        }.items()
    ),
    Goal("20-way 1-shot, multi_step4", 4, "ms", ms(GPU, "omniglot-20w1s", "multi_step4")),
    Goal("20-way 5-shot, maml", 25, "ms", ms(GPU, LARGEST, "maml")),
    Goal("20-way 5-shot, multi_step4", 8, "ms", ms(GPU, LARGEST, "multi_step4")),
    Goal("20-way 5-shot, memory of exact MAML", 1.2 * 1024, "MiB", mib(GPU, LARGEST, "maml")),
    *(
        Goal(f"the same / first order's, {steps} inner steps", most, "",
             ratio(mib(GPU, LARGEST, "maml", steps), mib(GPU, LARGEST, "first_order", steps)))
        for steps, most in ((STANDARD_STEPS, 1.1), (64, 1.4))
    ),
    Goal("start to the first step, empty caches", 30, "s", seconds("cold_seconds")),
    Goal("start to the first step, full caches", 10, "s", seconds("warm_seconds")),
    Goal("meta-transfer, baseline, T = 2", 15, "ms", ms(TRANSFER, "transfer-stl10", "baseline", 2)),
    Goal("meta-transfer, multi_step2, T = 2", 11, "ms", ms(TRANSFER, "transfer-stl10", "multi_step2", 2)),
    Goal("CPU, 5-way 1-shot, maml: time / the fastest alternative's", 1, "",
         ratio(ms(CPU, STANDARD, "maml"), fastest_alternative("ms"))),
    Goal("CPU, maml: memory / that one's", 1, "",
         ratio(mib(CPU, STANDARD, "maml"), fastest_alternative("peak_mib"))),
    Goal("CPU, multi_step4: time / that one's of maml", 0.5, "",
         ratio(ms(CPU, STANDARD, "multi_step4"), fastest_alternative("ms"))),
)  # fmt: skip


def goals(name: str) -> Iterator[str]:
    del name
    yield from heading("", "at most", "measured", "reached")
    for goal in GOALS:
        value = goal.found()
        said = ("not measured", "") if value is None else (written(value, goal.unit), verdict(value, goal.most))
        yield line(goal.what, written(goal.most, goal.unit), *said)


def written(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.2f} {unit}".strip()


def verdict(value: float, most: float) -> str:
    return "yes" if value <= most else f"no: {value / most - 1:.0%} above"
