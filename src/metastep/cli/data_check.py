"""Say what is wrong with a folder of pictures, and what it could serve."""

from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from metastep.cli.common import plain_table, progress_bar
from metastep.data.check import Finding, Served, check_folder, outlook, possible, served_by
from metastep.data.episodes import Episodes
from metastep.data.errors import printable
from metastep.data.folder import Folder, has_parts
from metastep.data.pictures import PARTS, Labelled
from metastep.data.registry import DataSet
from metastep.errors import how_many


def check_folder_for_transfer(folder: Path, size: int, batch: int) -> None:
    with progress_bar(f"checking {printable(folder)}") as progress:
        checked = check_folder(folder, progress=progress)
        seen = outlook(folder, checked)
    findings = checked.findings
    _print_findings(findings, folder)
    if not isinstance(seen, str):
        _print_parts(seen.parts, "without what was found" if findings else "")
        typer.echo("\n".join(seen.in_words(size, batch)))
    elif seen not in {finding.message for finding in findings}:
        typer.echo(seen)
    if findings or isinstance(seen, str):
        raise typer.Exit(1)
    parts = "; its own train/ and test/ share their classes, and serve no episodes" if has_parts(folder) else ""
    typer.echo(f"{printable(folder)}: all is well for transfer{parts}")


def check_for_episodes(data: DataSet, episodes: Episodes) -> None:
    is_own = isinstance(data, Folder)
    with progress_bar(f"checking {printable(data.root if is_own else data.name)}") as progress:
        checked = check_folder(data.root, progress=progress) if is_own else None
        served = served_by(replace(data, progress=progress), episodes, checked)
    findings = checked.findings if checked else []
    _print_findings(findings, data.root)
    queries = how_many(episodes.queries, "query", "queries")
    _print_served(served, f"{episodes.ways}-way {episodes.shots}-shot with {queries}?")
    short = any(each.shortage for each in served)
    if short:
        typer.echo(possible(served, episodes))
    if short and is_own:
        typer.echo("For transfer, which trains on all classes, and needs two of them, ask with --transfer.")
    if findings or short:
        raise typer.Exit(1)
    typer.echo(f"{printable(data.root if is_own else data.name)}: all is well")


def _print_findings(findings: list[Finding], folder: Path) -> None:
    if not findings:
        return
    table = plain_table("problem", "where", "what to do")
    for finding in findings:
        where = printable(finding.path.relative_to(folder))
        table.add_row(Text(finding.kind, "bold"), Text(where), Text(finding.reason))
    console = Console()
    console.print(table)
    console.print(Text(f"{how_many(len(findings), 'finding')} in {printable(folder)}"))


def _print_served(served: list[Served], question: str) -> None:
    table = plain_table("split", "classes", "pictures of each", question)
    for split, sizes, shortage in served:
        pictures = " to ".join(f"{size:,}" for size in sorted({min(sizes), max(sizes)})) if sizes else ""
        answer = Text(printable(shortage), "yellow") if shortage else Text("yes", "green")
        table.add_row(split, f"{len(sizes):,}", pictures, answer)
    Console().print(table)


def _print_parts(parts: Labelled, title: str) -> None:
    """Print how many pictures of each class serve which part."""
    table = plain_table("class", *PARTS, numbers=PARTS, title=title)
    numbers = [part.sizes for part in (parts.train, parts.val, parts.test)]
    for name, *row in zip(parts.train.names, *numbers, strict=True):
        table.add_row(Text(printable(name)), *(f"{number:,}" for number in row))
    table.add_section()
    table.add_row("all", *(f"{sum(column):,}" for column in numbers))
    Console().print(table)
