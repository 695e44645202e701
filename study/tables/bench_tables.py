"""Tables of what `python -m study bench` wrote, and of its floor. A file that is missing has no table."""

from collections.abc import Iterable, Iterator
from typing import Any

from study import results
from study.bench.cases import METHODS, PAPER_SETTINGS, SETTINGS, STANDARD, STANDARD_STEPS, TRANSFERS, Case
from study.bench.floor import H200, Work, floor, parameters
from study.bench.results import Row, case_of

OURS = "metastep"
FLOORS = ("maml", "multi_step2", "multi_step4", "multi_step8", "first_order")
FLOOR_SETTINGS = (*PAPER_SETTINGS, "miniimagenet-5w1s", "miniimagenet-5w5s")


def heading(*titles: str, words: int = 1) -> Iterator[str]:
    """Columns of words first, to the left; then numbers, to the right"""
    yield line(*titles)
    yield "|" + "---|" * words + "---:|" * (len(titles) - words)


def line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


# ---- what needs no measurement


def floors(name: str) -> Iterator[str]:
    del name
    yield from heading("setting, 8 inner steps", "method", "GFLOP", "GB", "ms of arithmetic", "ms of traffic", words=2)
    for setting in FLOOR_SETTINGS:
        for label in FLOORS:
            work = floor(setting, *_method(label), SETTINGS[setting].tasks)
            arithmetic, traffic = work.milliseconds(H200)
            yield line(
                setting, label, f"{work.operations / 1e9:,.0f}", f"{work.bytes / 1e9:,.1f}",
                f"{arithmetic:.2f}", f"{traffic:.2f}",
            )  # fmt: skip


def _method(label: str) -> tuple[str, int, int]:
    method, window = METHODS[label]
    return method, STANDARD_STEPS, window


def floor_of(case: Case) -> Work:
    return floor(case.setting, case.method, case.steps, case.window, case.tasks)


# ---- what was measured


def bench(name: str) -> Iterator[str]:
    content, rows = measured(name)
    if not rows:
        return
    yield results.caption(content)
    yield from alternatives(rows)
    if "H200" in content["device"]:
        yield from fractions(rows)
    yield from by_steps(rows)
    yield from by_setting(rows)
    yield from exact_memory(rows)
    yield from transfer(rows)


def measured(name: str) -> tuple[dict[str, Any], dict[Case, Row]]:
    content = results.read_if_there(name)
    return content, {case_of(row): row for row in content["rows"] if row["ms"] is not None}


def headline(name: str) -> Iterator[str]:
    """The standard case in one look: ours and each alternative that was measured with it"""
    content, rows = measured(name)
    found = {
        (case.method_label, case.implementation): row
        for case, row in rows.items()
        if (case.setting, case.steps, case.tasks) == (STANDARD, STANDARD_STEPS, SETTINGS[STANDARD].tasks)
    }
    others = list(dict.fromkeys(implementation for _, implementation in found if implementation != OURS))
    if not others:
        return
    tasks = SETTINGS[STANDARD].tasks
    yield f"One meta-iteration, 5-way 1-shot, {tasks} tasks, {STANDARD_STEPS} inner steps, on {content['device']}:\n"
    yield from heading("", "metastep", *others)
    for label in FLOORS:
        cells = [found.get((label, each)) for each in (OURS, *others)]
        yield line(label, *(f"{_ms(row['ms'])} ms, {row['peak_mib']:,.0f} MiB" if row else "" for row in cells))


def peers(name: str) -> Iterator[str]:
    """The standard case on a CPU: a column for each implementation"""
    content, rows = measured(name)
    found = {(case.method_label, case.implementation): row for case, row in rows.items()}
    ways = list(dict.fromkeys(case.implementation for case in rows))
    tasks = next(iter(rows)).tasks
    yield f"Conv4 with 64 filters, {tasks} tasks, {STANDARD_STEPS} inner steps, on {content['device']}: ms, and MiB\n"
    yield from heading("", *ways)
    for label in ("maml", "multi_step4", "first_order"):
        cells = [found.get((label, way)) for way in ways]
        yield line(label, *(f"{_ms(row['ms'])}, {row['peak_mib']:,.0f}" if row else "" for row in cells))


def alternatives(rows: dict[Case, Row]) -> Iterator[str]:
    """Where one stands next to ours"""
    compared = {_task_of(case) for case in rows if case.implementation != OURS and case.setting not in TRANSFERS}
    if not compared:
        return
    yield "\n**Beside the alternatives**\n"
    yield from heading("setting, tasks", "method, inner steps", "implementation", "ms", "±", "MiB", words=3)
    for case, row in rows.items():
        if _task_of(case) in compared:
            yield _measured(case, row)


def transfer(rows: dict[Case, Row]) -> Iterator[str]:
    found = {case: row for case, row in rows.items() if case.setting in TRANSFERS}
    if found:
        yield "\n**Meta-transfer**: one iteration, with the batch that it draws\n"
        yield from heading("setting, batch", "method, T", "implementation", "ms", "±", "MiB", words=3)
    for case, row in found.items():
        yield _measured(case, row)


def _measured(case: Case, row: Row) -> str:
    size = TRANSFERS[case.setting].config.batch if case.setting in TRANSFERS else case.tasks
    return line(
        f"{case.setting}, {size}", f"{case.method_label}, {case.steps}", case.implementation,
        _ms(row["ms"]), _ms(row["ms_spread"] / 2), f"{row['peak_mib']:,.0f}",
    )  # fmt: skip


def _task_of(case: Case) -> tuple[Any, ...]:
    return case.setting, case.method, case.steps, case.window, case.tasks


def fractions(rows: dict[Case, Row]) -> Iterator[str]:
    """Floor over measured, at the standard number of steps"""
    if not any(_ours(rows, steps={STANDARD_STEPS})):
        return
    yield "\n**How near to the floor**\n"
    yield from heading("setting", "method", "ms", "floor, ms", "floor / measured", words=2)
    for case, row in _ours(rows, steps={STANDARD_STEPS}):
        least = max(floor_of(case).milliseconds(H200))
        yield line(case.setting, case.method_label, _ms(row["ms"]), f"{least:.2f}", f"{least / row['ms']:.0%}")


def by_steps(rows: dict[Case, Row]) -> Iterator[str]:
    """A table for each setting that has several"""
    for setting in dict.fromkeys(case.setting for case, _ in _ours(rows)):
        found = {(case.steps, case.method_label): row for case, row in _ours(rows) if case.setting == setting}
        steps, methods = sorted({number for number, _ in found}), list(dict.fromkeys(method for _, method in found))
        if len(steps) > 1:
            yield f"\n**With the inner steps**: {setting}, ms (MiB)\n"
            yield from heading("inner steps", *methods)
            for number in steps:
                yield line(str(number), *(_cell(found.get((number, method))) for method in methods))


def by_setting(rows: dict[Case, Row]) -> Iterator[str]:
    found = {(case.setting, case.method_label): row for case, row in _ours(rows, steps={STANDARD_STEPS})}
    settings = list(dict.fromkeys(setting for setting, _ in found))
    if len(settings) < 2:
        return
    methods = list(dict.fromkeys(method for _, method in found))
    yield "\n**With ways and shots**: ms (MiB)\n"
    yield from heading("setting", *methods)
    for setting in settings:
        tasks = next(row["tasks"] for (name, _), row in found.items() if name == setting)
        yield line(f"{setting}, {tasks} tasks", *(_cell(found.get((setting, method))) for method in methods))


def exact_memory(rows: dict[Case, Row]) -> Iterator[str]:
    """MAML's peak against that of first order, wherever both were measured"""
    mib = {(case.setting, case.steps, case.method): row["peak_mib"] for case, row in _ours(rows)}
    both = [key[:2] for key in mib if key[2] == "maml" and (*key[:2], "first_order") in mib]
    if not both:
        return
    yield "\n**Memory of exact MAML beside first order**: MiB\n"
    yield from heading("setting", "inner steps", "maml", "first order", "ratio")
    for setting, steps in both:
        exact, least = (mib[setting, steps, method] for method in ("maml", "first_order"))
        yield line(setting, str(steps), f"{exact:,.0f}", f"{least:,.0f}", f"{exact / least:.2f}")


def growth(name: str) -> Iterator[str]:
    """Tasks and parameters"""
    content, rows = measured(name)
    if not rows:
        return
    found = {(case.setting, case.tasks, case.method_label): row for case, row in _ours(rows)}
    methods = list(dict.fromkeys(method for *_, method in found))
    yield results.caption(content)
    yield "\n**With tasks and parameters**: ms (MiB)\n"
    yield from heading("parameters", "tasks", *methods)
    for setting, tasks in dict.fromkeys(key[:2] for key in found):
        cells = (_cell(found.get((setting, tasks, method))) for method in methods)
        yield line(f"{parameters(SETTINGS[setting]):,}", str(tasks), *cells)


def _ours(rows: dict[Case, Row], steps: Iterable[int] = ()) -> Iterator[tuple[Case, Row]]:
    for case, row in rows.items():
        if case.implementation == OURS and (not steps or case.steps in steps):
            yield case, row


def _cell(row: Row | None) -> str:
    return f"{_ms(row['ms'])} ({row['peak_mib']:,.0f})" if row else ""


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def inner_optimizers(name: str) -> Iterator[str]:
    """Rows: optimizers whose step is traced; time relative to one of ours, by subject and method"""
    content = results.read_if_there(name)
    if not content["rows"]:
        return
    ratios = {(row["optimizer"], row["subject"], row["method"]): row["ratio"][0] for row in content["rows"]}
    against = {row["optimizer"]: row["compared with"] for row in content["rows"]}
    columns = list(dict.fromkeys((subject, method) for _, subject, method in ratios))
    yield results.caption(content)
    yield from heading("traced", "compared with our", *(f"{subject}, {method}" for subject, method in columns), words=2)
    for optimizer, ours in against.items():
        cells = (ratios.get((optimizer, *column)) for column in columns)
        yield line(optimizer, ours, *("–" if ratio is None else f"{ratio:.2f}" for ratio in cells))
