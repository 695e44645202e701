"""`python -m study claims`: the paper, claim by claim."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from metastep.cli.common import UNFINISHED, Data, refusals
from metastep.data.errors import printable
from metastep.errors import MetastepError
from metastep.train.device import uses_gpu
from metastep.train.schema import Device
from study.claims import files, keeping
from study.claims.claims import Claim
from study.claims.evidence import Evidence
from study.claims.listing import listing
from study.claims.planning import is_done, jobs_for
from study.claims.register import REGISTER, TABLES
from study.claims.session import Session, absence, absent_for_more

ON_GPU = 4  # runs at a time; on a CPU they would only take turns
RUNS, OUT, BENCH = Path("runs", "reproduce"), Path("results", "claims"), Path("results", "bench")


def reproduce(
    only: Annotated[str | None, typer.Option(help="Claims such as T4.31,X6.", show_default="all")] = None,
    table: Annotated[str | None, typer.Option(help=f"One of {', '.join(TABLES)}.", show_default="all")] = None,
    list_claims: Annotated[bool, typer.Option("--list", help="Show what is done and what is open.")] = False,
    data: Data = None,
    runs: Annotated[Path, typer.Option(help="The folder for the runs.")] = RUNS,
    out: Annotated[Path, typer.Option(help="The folder for the claims, one file each, and what they rest on.")] = OUT,
    bench: Annotated[Path, typer.Option(help="The folder with what `python -m study bench` measured.")] = BENCH,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds for each run.", show_default="1; transfer 3")] = None,
    iterations: Annotated[
        int | None,
        typer.Option(min=1, help="Iterations of few-shot runs, to make them shorter.", show_default="the paper's"),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(min=1, help="Seconds until it stops; unfinished runs are kept, and continue in the next call."),
    ] = None,
    together: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time.", show_default=f"{ON_GPU} on a GPU, else 1")
    ] = None,
    device: Annotated[Device | None, typer.Option(help="Device for new runs.")] = None,
    precision: Annotated[
        Literal["float32", "tf32", "float64"] | None, typer.Option(help="Precision of new runs.")
    ] = None,
) -> None:
    """Run the paper's tables and figures from presets, and write one file for each claim.

    Called again, it continues where it stopped, and repeats nothing. Ctrl-C is safe; exit status 130 says that
    there is more to do.
    """
    with refusals():
        claims = chosen(only, table)
        evidence = Evidence(runs, bench, data, iterations, out / keeping.FOLDER)
        if list_claims:
            Console().print(listing(claims, evidence, out, seeds))
            return
        changes: dict[str, Any] = {"device": device, "precision": precision}
        session = Session(
            evidence,
            out,
            {k: v for k, v in changes.items() if v},
            lambda text: print(printable(text), flush=True),  # plainly: a live display puts it above its lines
            together or (ON_GPU if uses_gpu(device or "auto") else 1),
        )
        left = [claim for claim in claims if only or not is_done(claim, files.read(out, claim.id), evidence, seeds)]
        open_ones = [claim for claim in left if not is_done(claim, files.read(out, claim.id), evidence, seeds)]
        if only:
            require_data(open_ones, evidence, seeds)
        if not session.run(left, jobs_for(open_ones, evidence, seeds), budget):
            raise typer.Exit(UNFINISHED)


def chosen(only: str | None, table: str | None) -> list[Claim]:
    if only and table:
        raise MetastepError("--only and --table: which of them? Leave one out.")
    if table and table not in TABLES:
        raise MetastepError(f"--table {table}: there is no such table. Choose one of {', '.join(TABLES)}.")
    if not only:
        return [claim for claim in REGISTER.values() if table in (None, claim.table)]
    ids = [id.strip() for id in only.split(",")]
    if unknown := [id for id in ids if id not in REGISTER]:
        raise MetastepError(
            f"--only {unknown[0]}: there is no such claim. `python -m study claims --list` shows all of them."
        )
    return [REGISTER[id] for id in ids]


def require_data(claims: list[Claim], evidence: Evidence, seeds: int | None) -> None:
    for claim in claims:
        if absent := absence(claim, evidence) or absent_for_more(claim, evidence, seeds):
            other = next(filter(None, map(evidence.lacking, claim.stand_in)), absent)
            either = absent if other == absent else f"{absent}, or {other} in its place"
            raise MetastepError(
                f"{claim.id} needs {either}, which is missing. Name the folder that has it with --data or "
                "METASTEP_DATA; `metastep data list` says where to get it."
            )
