"""`metastep data`: what data sets there are, what their episodes look like, what is wrong with a folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from metastep.cli.common import Data, progress_bar, refusals
from metastep.data.catalog import ENTRIES, FOLDER, OMNIGLOT, Entry, data_directory, entry_of, find, own_folder, resolve
from metastep.data.check import Finding, check_folder
from metastep.data.contact import contact_sheet
from metastep.data.download import download_omniglot
from metastep.data.episodes import Episodes
from metastep.data.errors import printable, problem
from metastep.data.files import entries
from metastep.data.for_transfer import in_words, outlook
from metastep.data.images import LabelledSplits
from metastep.data.labelled import LABELLED, OWN, LabelledEntry, is_parted, labelled_entry, only_labelled
from metastep.data.own import has_parts
from metastep.data.pictures import save_picture
from metastep.data.previews import describe, preview
from metastep.data.serving import Served, possible, served_by
from metastep.data.splits import PARTS
from metastep.errors import how_many

app = typer.Typer(
    no_args_is_help=True, help="Data sets: which there are, what they look like, what is wrong with them."
)


def _at_least_one(of_what: str) -> Any:
    return typer.Option(min=1, help=of_what)


Ways = Annotated[int, _at_least_one("Classes in an episode.")]
Shots = Annotated[int, _at_least_one("Pictures of each class to adapt to.")]
Queries = Annotated[int, _at_least_one("Pictures of each class to be judged by.")]
DataSet = Annotated[str, typer.Argument(help="One of `metastep data list`, folder:PATH, or a path.")]


@app.command("list")
def list_data_sets(data: Data = None) -> None:
    """List the data sets: what they are, on what terms, and where they are or can be had."""
    with refusals():
        root = data or data_directory()
        if root is not None:
            entries(root.expanduser())  # says so if the folder cannot be opened at all
        found = find(root.expanduser()) if root is not None else {}
        console = Console()
        table = _table("name", "what", "where", title="for episodes")
        for entry in ENTRIES:
            table.add_row(*_described(entry, ", ".join(entry.splits), found.get(entry.name, ())), end_section=True)
        console.print(table)
        table = _table("name", "what", "where", title="with labels, for transfer")
        for labelled in LABELLED:
            files = labelled.locate(root.expanduser()) if root is not None else ()
            table.add_row(*_described(labelled, labelled.parts, files), end_section=True)
        console.print(table)
        directory = printable(root) if root is not None else "none; name one with --data or METASTEP_DATA"
        console.print(Text(f"data directory: {directory}"))


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="omniglot: the only one that may be downloaded freely.")],
    data: Data = None,
) -> None:
    """Download a data set into the data directory, checked before it is put in place."""
    with refusals():
        entry = labelled_entry(name) if only_labelled(name) else entry_of(name)
        root = data or data_directory()
        if entry is not OMNIGLOT:
            raise problem(entry.name, "cannot be downloaded for you", f"To get it: {entry.source}")
        if root is None:
            raise problem(entry.name, "where to?", "Name a data directory with --data or METASTEP_DATA")
        with progress_bar(f"downloading {entry.name}") as progress:
            paths = download_omniglot(root.expanduser(), progress=progress)
        typer.echo(f"{entry.name}: {', '.join(printable(path) for path in paths)}")


@app.command()
def show(
    name: DataSet,
    out: Annotated[Path | None, typer.Option(help="The picture to write.", show_default="NAME-SPLIT.png")] = None,
    ways: Ways = 5,
    shots: Shots = 1,
    queries: Queries = 5,
    episodes: Annotated[int, _at_least_one("Episodes to show.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the episodes.")] = 0,
    split: Annotated[
        str | None,
        typer.Option(help="train, val, trainval, test or all.", show_default="all of a folder, train of the others"),
    ] = None,
    data: Data = None,
) -> None:
    """Draw a contact sheet: a few episodes with their support and their queries."""
    with refusals():
        with progress_bar(f"reading {printable(name)}") as progress:
            label, split, images = preview(name, data, split, progress)
        title = f"{printable(name)} · {split} · {ways}-way {shots}-shot · seed {seed}"
        sheet = contact_sheet(images, Episodes(ways, shots, queries), episodes, seed, title)
        path = out or Path(f"{label}-{split}.png")
        save_picture(sheet, path)
        classes = how_many(len(images.names), "class", "classes")
        typer.echo(f"{printable(path)}: {how_many(episodes, 'episode')} out of {classes}")


@app.command()
def check(
    name: DataSet,
    ways: Ways = 5,
    shots: Shots = 1,
    queries: Queries = 5,
    transfer: Annotated[
        bool, typer.Option("--transfer", help="For `metastep transfer run`, where all classes are trained on.")
    ] = False,
    size: Annotated[int, _at_least_one("For transfer: pixels along the side that pictures are made.")] = 16,
    batch: Annotated[int, typer.Option(min=2, help="For transfer: pictures in an iteration.")] = 25,
    data: Data = None,
) -> None:
    """List everything that is wrong with a folder of your own pictures, and whether there are enough of them.

    For few-shot learning, which splits can serve such episodes; with --transfer, how many pictures of each class would
    be trained on, validated with and tested on. Exit status 1 if anything is wrong, or too little.
    """
    with refusals():
        if only_labelled(name) or (transfer and labelled_entry(name, data) is not OWN):
            with progress_bar(f"checking {printable(name)}") as progress:
                typer.echo(describe(name, data, progress))
            return
        if transfer or is_parted(name, data):
            _check_for_transfer(own_folder(name, data), size, batch)
        else:
            _check_for_episodes(name, data, Episodes(ways, shots, queries))


def _check_for_transfer(folder: Path, size: int, batch: int) -> None:
    with progress_bar(f"checking {printable(folder)}") as progress:
        findings = check_folder(folder, progress=progress)
        seen = outlook(folder, findings)
    _print_findings(findings, folder)
    if not isinstance(seen, str):
        _print_splits(seen.splits, "without what was found" if findings else "")
        typer.echo("\n".join(in_words(seen, size, batch)))
    elif seen not in {finding.message for finding in findings}:
        typer.echo(seen)
    if findings or isinstance(seen, str):
        raise typer.Exit(1)
    parts = "; its own train/ and test/ share their classes, and serve no episodes" if has_parts(folder) else ""
    typer.echo(f"{printable(folder)}: all is well for transfer{parts}")


def _check_for_episodes(name: str, data: Path | None, episodes: Episodes) -> None:
    entry, folder = resolve(name, data)
    with progress_bar(f"checking {printable(name)}") as progress:
        findings = check_folder(folder, progress=progress) if entry is FOLDER else []
        served = served_by(name, data, episodes, findings, progress)
    _print_findings(findings, folder)
    queries = how_many(episodes.queries, "query", "queries")
    _print_served(served, f"{episodes.ways}-way {episodes.shots}-shot with {queries}?")
    short = any(each.shortage for each in served)
    if short:
        typer.echo(possible(served, episodes))
    if short and entry is FOLDER:
        typer.echo("For transfer, which trains on all classes, and needs two of them, ask with --transfer.")
    if findings or short:
        raise typer.Exit(1)
    typer.echo(f"{printable(folder if entry is FOLDER else name)}: all is well")


def _table(*headings: str, title: str = "") -> Table:
    table = Table(title=title or None, title_justify="left", header_style="bold", border_style="dim")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _described(entry: Entry | LabelledEntry, splits: str, files: tuple[Path, ...]) -> Iterator[Text]:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    yield Text(entry.name, "bold")
    yield Text(entry.summary).append(f"\nsplits: {splits}\nterms: {entry.licence}", "dim")
    yield Text(f"{printable(files[0])}{more}", "green") if files else Text(entry.source)


def _print_findings(findings: list[Finding], folder: Path) -> None:
    if not findings:
        return
    table = _table("problem", "where", "what to do")
    for finding in findings:
        where = printable(finding.path.relative_to(folder))
        table.add_row(Text(finding.kind, "bold"), Text(where), Text(finding.reason))
    console = Console()
    console.print(table)
    console.print(Text(f"{how_many(len(findings), 'finding')} in {printable(folder)}"))


def _print_served(served: list[Served], question: str) -> None:
    table = _table("split", "classes", "pictures of each", question)
    for split, sizes, shortage in served:
        pictures = " to ".join(f"{size:,}" for size in sorted({min(sizes), max(sizes)})) if sizes else ""
        answer = Text(printable(shortage), "yellow") if shortage else Text("yes", "green")
        table.add_row(split, f"{len(sizes):,}", pictures, answer)
    Console().print(table)


def _print_splits(splits: LabelledSplits, title: str) -> None:
    """How many pictures of each class are for what."""
    table = _table("class", title=title)
    for part in PARTS:
        table.add_column(part, justify="right")
    numbers = [part.sizes for part in (splits.train, splits.val, splits.test)]
    for name, *row in zip(splits.train.names, *numbers, strict=True):
        table.add_row(Text(printable(name)), *(f"{number:,}" for number in row))
    table.add_section()
    table.add_row("all", *(f"{sum(column):,}" for column in numbers))
    Console().print(table)
