"""Rows as tables on the terminal, one for each setting."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from rich.table import Table

from metastep.errors import how_many
from study.bench.plan import in_order
from study.bench.results import Row, case_of


def tables(rows: Iterable[Row], device: str) -> Iterator[Table]:
    ordered = sorted(rows, key=lambda row: in_order(case_of(row)))
    for (setting, tasks), group in groupby(ordered, lambda row: (row["setting"], row["tasks"])):
        yield table(list(group), f"{setting}, {how_many(tasks, 'task')}, one meta-iteration on {device}")


def table(rows: list[Row], title: str) -> Table:
    ours = {_compared(row): row["ms"] for row in rows if row["implementation"] == "metastep"}
    shown = Table("steps", "method", "implementation", title=title, header_style="bold", border_style="dim")
    for heading in ("ms", "±", "of metastep's", "MiB"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(str(row["steps"]), case_of(row).method_label, row["implementation"], *cost(row, ours))
    return shown


def cost(row: Row, ours: dict[Any, float | None]) -> tuple[str, ...]:
    if row["ms"] is None:
        return (str(row["note"]),)
    reference = ours.get(_compared(row))
    ratio = f"{row['ms'] / reference:.2f} ×" if reference else ""
    return f"{row['ms']:,.1f}", f"{row['ms_spread'] / 2:,.1f}", ratio, f"{row['peak_mib']:,.0f}"


def _compared(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("method", "steps", "window", "precision"))
