"""`python -m study bench`: what a meta-iteration costs here, and with the alternatives that are installed."""

from pathlib import Path
from typing import Annotated

import typer

from metastep.cli.common import refusals
from metastep.errors import MetastepError
from metastep.step.mapped import VMAP_CHUNK
from metastep.train.device import device_for
from study.bench import modules, pair_studies, studies
from study.bench.cases import QUICK, Grid, Precision, chosen
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
    settings_option,
    typed,
    words,
)
from study.bench.plan import left_out, planned
from study.bench.running import Conditions
from study.bench.session import finish, run

QUICK_IMPLEMENTATIONS = ("metastep", "hand-loop", "torch.func")
ALL_IMPLEMENTATIONS = tuple(name for name in IMPLEMENTATIONS if not name.startswith("metastep-"))  # ours once

app = typer.Typer()
for study in (
    studies.startup,
    studies.profile,
    studies.precision,
    pair_studies.pairs,
    pair_studies.history,
    modules.modules,
):
    app.command()(study)


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    settings: Annotated[str | None, settings_option("the paper's")] = None,
    methods: Annotated[str | None, methods_option("all")] = None,
    steps: Annotated[str | None, typer.Option(help="Inner steps.", show_default="1 to 8, 16, 32, 64")] = None,
    alternative_steps: Annotated[
        str | None, typer.Option(help="Inner steps of the alternatives.", show_default="8")
    ] = None,
    transfer_steps: Annotated[str | None, typer.Option(help="Virtual steps T.", show_default="2")] = None,
    implementations: Annotated[
        str | None, typer.Option(help=f"Some of {', '.join(IMPLEMENTATIONS)}.", show_default="all that are installed")
    ] = None,
    tasks: Tasks = None,
    chunk: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tasks computed together.", show_default=f"{VMAP_CHUNK} on a CPU, else all; metastep chooses"
        ),
    ] = None,
    precision: Chosen = None,
    device: DeviceChoice = None,
    threads: Threads = 1,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="How often each measurement is repeated.", show_default="5")
    ] = None,
    out: Annotated[Path | None, out_option("bench")] = None,
    data: Data = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few tasks, three methods: two minutes on two cores.")] = False,
) -> None:
    """Measure time and memory of whole meta-iterations, and write them as JSON, a table and a plot.

    Lists are separated by commas. Rows that the file has already, of the same commit, are not measured again.
    """
    given = typed({name: value for name, value in locals().items() if name != "context"})
    with refusals():
        if context.invoked_subcommand:
            refuse_flags(given, context.invoked_subcommand)
            return
        place = device_for(device or "auto")
        grid = grid_of(QUICK if quick else Grid(), given, place)
        names = with_precision(chosen_names(implementations, quick), grid.precision, bool(implementations))
        conditions = Conditions(str(place), threads, repeats or (3 if quick else 5))
        cases = planned(grid, names, None if conditions.on_gpu else VMAP_CHUNK)
        for label in left_out(grid, cases):
            typer.echo(f"{label} is left out: it has no row with these settings and inner steps.", err=True)
        packages = dict.fromkeys(package for name in names if (package := IMPLEMENTATIONS[name].package))
        path = file_for("quick" if quick else "bench", given, place)
        above, rows = run(cases, conditions, path, about("bench", given, place, packages))
        finish(path, above, rows)


def refuse_flags(given: dict[str, object], name: str) -> None:
    if left := [f"--{flag.replace('_', '-')}" for flag in given if flag != "threads"]:
        raise MetastepError(f"{', '.join(left)}: flags of `python -m study bench {name}` stand after its name.")


def chosen_names(implementations: str | None, quick: bool) -> list[str]:
    """Those that were asked for must be there; of all, those that are not are named and left out"""
    if implementations is None:
        names = QUICK_IMPLEMENTATIONS if quick else ALL_IMPLEMENTATIONS
        for name in names:
            if reason := IMPLEMENTATIONS[name].missing:
                typer.echo(f"{name} is left out: {reason}.", err=True)
        return [name for name in names if not IMPLEMENTATIONS[name].missing]
    asked = words(implementations)
    for name in asked:
        if reason := chosen(name, IMPLEMENTATIONS, "implementation").missing:
            raise MetastepError(f"--implementations {name}: {reason}. Install it, or leave it out.")
    return list(asked)


def with_precision(names: list[str], precision: Precision, asked: bool) -> list[str]:
    """Those that would do something else must not be asked for; of all, they are named and left out"""
    others = [name for name in names if precision not in IMPLEMENTATIONS[name].precisions]
    reason = f"it does not multiply in {precision}"
    if others and asked:
        raise MetastepError(f"--implementations {others[0]}: {reason}. Leave it out, or choose another --precision.")
    for name in others:
        typer.echo(f"{name} is left out: {reason}.", err=True)
    return [name for name in names if name not in others]
