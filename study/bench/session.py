"""Measure case after case; what is measured is safe at once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from metastep.cli.common import UNFINISHED, progress_bar
from metastep.train.stop import terminated_as_interrupted
from study.bench.cases import Case
from study.bench.results import Row, case_of, resumed, write
from study.bench.running import Conditions, measured
from study.bench.table import tables


def run(
    cases: Sequence[Case], conditions: Conditions, path: Path, about: dict[str, Any]
) -> tuple[dict[str, Any], list[Row]]:
    """What is said of all rows, and the rows, those that were there before too.

    The file is whole after each, so that Ctrl-C loses one at most.
    """
    console, (about, rows) = Console(stderr=True), resumed(path, about)
    there = {case_of(row) for row in rows}
    left = [case for case in cases if case not in there]
    if len(left) < len(cases):
        console.print(f"{len(cases) - len(left)} rows are in {path} already.", highlight=False)
    try:
        with terminated_as_interrupted(), progress_bar("measuring") as progress:
            for done, case in enumerate(left, start=1):
                rows.append(measured(case, conditions))
                write(path, about, rows)
                progress(done, len(left))
                console.print(f"{done}/{len(left)}  {case.label}: {_cost(rows[-1])}", highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        console.print(f"Stopped. What was measured is in {path}; the same command continues.", soft_wrap=True)
        finish(path, about, rows)
        raise typer.Exit(UNFINISHED) from None
    return about, rows


def finish(path: Path, about: dict[str, Any], rows: list[Row]) -> None:
    if not rows:
        return
    from study.bench.plot import plot  # only here: matplotlib takes a second to import

    for shown in tables(rows, about["device"]):
        Console().print(shown)
    picture = path.with_suffix(".svg")
    plot(rows, about["device"], picture)
    Console().print(f"Results: {path}, plot: {picture}", soft_wrap=True, highlight=False)


def _cost(row: Row) -> str:
    return str(row["note"]) if row["ms"] is None else f"{row['ms']:,.1f} ms, {row['peak_mib']:,.0f} MiB"
