"""`python -m study bench startup`, `profile` and `precision`: what else there is to know about a meta-iteration."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from metastep.cli.common import refusals
from metastep.errors import MetastepError, first_line
from metastep.train.device import device_for
from study.bench import precision as precisions, profile as profiles, startup as starting
from study.bench.cases import STANDARD, STANDARD_STEPS, TRANSFERS, Case, Grid
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
    settings_option,
    typed,
)
from study.bench.plan import planned
from study.bench.results import Row, about_case, write
from study.bench.running import Conditions

ONE = Grid((STANDARD,), ("maml",), (STANDARD_STEPS,))
SOME = replace(ONE, methods=("maml", "multi_step4", "first_order"))
SMOOTH = replace(ONE, methods=("maml", "multi_step2", "multi_step4", "multi_step8", "first_order", "reptile", "imaml"))

RowsOf = Callable[[Case, torch.device], Iterable[Row]]
Settings = Annotated[str, settings_option(STANDARD)]
Steps = Annotated[str, typer.Option(help="Inner steps.", show_default=str(STANDARD_STEPS))]
TransferSteps = Annotated[str, typer.Option(help="Virtual steps T.", show_default="2")]


def startup(
    settings: Settings = "",
    methods: Annotated[str, methods_option("maml")] = "",
    steps: Steps = "",
    transfer_steps: TransferSteps = "",
    tasks: Tasks = None,
    precision: Chosen = None,
    device: DeviceChoice = None,
    threads: Threads = 1,
    out: Annotated[Path | None, out_option("startup")] = None,
) -> None:
    """Time from nothing to the end of the first step: with empty caches of compiled kernels, and with full ones."""
    given = typed(locals())

    def rows(case: Case, place: torch.device) -> Iterable[Row]:
        yield starting.row(case, Conditions(str(place), threads, repeats=1))

    _study("startup", given, ONE, rows)


def profile(
    settings: Settings = "",
    methods: Annotated[str, methods_option("maml, multi_step4, first_order")] = "",
    steps: Steps = "",
    transfer_steps: TransferSteps = "",
    tasks: Tasks = None,
    precision: Chosen = None,
    device: DeviceChoice = None,
    threads: Threads = 1,
    out: Annotated[Path | None, out_option("profile")] = None,
) -> None:
    """Show where the time goes: kernels (on a CPU, operators) by name, and how long the device is busy."""
    given = typed(locals())
    _study("profile", given, SOME, lambda case, place: [profiles.row(case, place)])


def precision(
    settings: Settings = "",
    methods: Annotated[str, methods_option(", ".join(SMOOTH.methods or ()))] = "",
    steps: Steps = "",
    tasks: Tasks = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many meta-batches are compared.")] = 3,
    device: DeviceChoice = None,
    threads: Threads = 1,
    out: Annotated[Path | None, out_option("precision")] = None,
    data: Data = None,
) -> None:
    """Measure how far the meta-gradient is from float64's, in every precision that is available."""
    given = typed(locals())
    _study("precision", given, SMOOTH, lambda case, place: precisions.rows(case, place, range(seeds)))


def _study(name: str, given: dict[str, Any], usual: Grid, rows_of: RowsOf) -> None:
    """Row after row into the file, which is whole after each"""
    console, rows = Console(stderr=True), []
    with refusals():
        place = device_for(given.get("device", "auto"))
        grid = grid_of(usual, given, place)
        if "methods" not in given and set(grid.settings) <= set(TRANSFERS):
            grid = replace(grid, methods=None)  # those that a transfer setting has
        path, above = file_for(name, given, place), about(f"bench {name}", given, place)
        if place.type == "cpu":
            torch.set_num_threads(given["threads"])
        for case in planned(grid, ["metastep"]):
            for row in all_of(rows_of, case, place):
                rows.append(row)
                write(path, above, rows)
                console.print(f"{case.label}: {told(row)}", highlight=False, soft_wrap=True)
        console.print(f"Results: {path}", highlight=False, soft_wrap=True)


def all_of(rows_of: RowsOf, case: Case, place: torch.device) -> Iterable[Row]:
    """A case that fails has a row that says why, and does not stop the others; what cannot be asked for is refused"""
    try:
        yield from rows_of(case, place)
    except MetastepError:
        raise
    except Exception as error:
        yield about_case(case) | {"note": f"{type(error).__name__}: {first_line(error)}"}


def told(row: Row) -> str:
    """Its numbers, or why there are none, in one line"""
    numbers = {key: value for key, value in row.items() if isinstance(value, float)}
    shown = [f"{key} {value:.3g}" for key, value in numbers.items()] or [row["note"]]
    return ", ".join([row["precision"], *([row["start"]] if "start" in row else []), *shown])
