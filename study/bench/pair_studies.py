"""`python -m study bench pairs` and `history`: two implementations interleaved, at one commit after another."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from metastep.cli.common import refusals
from metastep.errors import MetastepError
from metastep.step.mapped import VMAP_CHUNK
from metastep.train.device import CHANGED, device_for
from study.bench.cases import Case, chosen
from study.bench.history import append, entries, table
from study.bench.implementations import IMPLEMENTATIONS
from study.bench.options import (
    Chosen,
    Data,
    DeviceChoice,
    Tasks,
    Threads,
    about,
    file_for,
    grid_of,
    methods_option,
    out_option,
    typed,
    words,
)
from study.bench.pairs import LEAST_PAIRS, paired, row_of_pair
from study.bench.results import Row
from study.bench.running import Conditions, FailedError
from study.bench.studies import ONE, Settings, Steps, TransferSteps

TWO = replace(ONE, methods=("maml", "multi_step4"))


def pairs(
    settings: Settings = "",
    methods: Annotated[str, methods_option("maml, multi_step4")] = "",
    steps: Steps = "",
    transfer_steps: TransferSteps = "",
    implementations: Annotated[
        str, typer.Option(help=f"Two of {', '.join(IMPLEMENTATIONS)}: ours and another.")
    ] = "metastep,hand-loop",
    number: Annotated[
        int, typer.Option("--pairs", min=LEAST_PAIRS, help="How often each of the two has its turn.")
    ] = LEAST_PAIRS,
    tasks: Tasks = None,
    precision: Chosen = None,
    device: DeviceChoice = None,
    threads: Threads = 1,
    out: Annotated[Path | None, out_option("history", "jsonl")] = None,
    data: Data = None,
) -> None:
    """Measure two implementations interleaved, and add medians and their 95 % intervals to the history of commits."""
    given = typed(locals())
    given["pairs"] = given.pop("number")
    with refusals():
        place = device_for(given.get("device", "auto"))
        names = two(implementations)
        path, above = file_for("history", given, place, "jsonl"), about("bench pairs", given, place, packages_of(names))
        above["date"] = datetime.now(UTC).date().isoformat()
        conditions = Conditions(str(place), threads, number)
        cases = paired(grid_of(TWO, given, place), names, None if conditions.on_gpu else VMAP_CHUNK)
        found = list(measured_pairs(cases, conditions, path, above))
        shown = entries(path) if is_kept(above) else found
        Console().print(table(shown, found))


def measured_pairs(cases: Iterable[tuple[Case, Case]], conditions: Conditions, path: Path, above: Row) -> Iterator[Row]:
    """Every row is in the file at once, unless no commit has the code that it measured"""
    console = Console(stderr=True)
    if not is_kept(above):
        console.print("Nothing is kept: no commit has this code. Commit, and measure again.", soft_wrap=True)
    for case, other in cases:
        try:
            row = above | row_of_pair(case, other, conditions)
        except FailedError as error:
            console.print(f"{case.label} / {other.implementation}: {error}", highlight=False, soft_wrap=True)
            continue
        if is_kept(above):
            append(path, row)
        yield row


def is_kept(above: Row) -> bool:
    return not above["commit"].endswith(CHANGED)


def two(names: str) -> tuple[str, str]:
    found = words(names)
    for name in found:
        if reason := chosen(name, IMPLEMENTATIONS, "implementation").missing:
            raise MetastepError(f"--implementations {name}: {reason}. Install it, or compare with another.")
    if len(found) != 2 or len(set(found)) != 2:
        raise MetastepError(f"--implementations {names}: name two, such as metastep,hand-loop.")
    return found[0], found[1]


def packages_of(names: Iterable[str]) -> list[str]:
    return [package for name in names if (package := IMPLEMENTATIONS[name].package)]


def history(
    file: Annotated[Path, typer.Argument(help="What `pairs` wrote.")] = Path("results", "bench", "cpu-history.jsonl"),
) -> None:
    """Show what pairs took at one commit after another."""
    with refusals():
        rows = entries(file)
        if not rows:
            raise MetastepError(f"{file} has no pairs. Measure some first: python -m study bench pairs.")
        Console().print(table(rows))
