"""`metastep data`: what data sets there are, what their episodes look like, what is wrong with a folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from metastep.cli.common import Data, plain_table, progress_bar, refusals
from metastep.data.episodes import Episodes
from metastep.data.errors import printable, problem
from metastep.errors import how_many

if TYPE_CHECKING:
    from metastep.data.labelled import LabelledEntry
    from metastep.data.registry import Entry

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
    from metastep.data.files import entries
    from metastep.data.labelled import LABELLED
    from metastep.data.registry import ENTRIES, data_directory, find

    with refusals():
        root = data or data_directory()
        if root is not None:
            entries(root.expanduser())  # says so if the folder cannot be opened at all
        found = find(root.expanduser()) if root is not None else {}
        console = Console()
        table = plain_table("name", "what", "where", title="for episodes")
        for entry in ENTRIES:
            table.add_row(*_described(entry, ", ".join(entry.splits), found.get(entry.name, ())), end_section=True)
        console.print(table)
        table = plain_table("name", "what", "where", title="with labels, for transfer")
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
    from metastep.data.download import download_omniglot
    from metastep.data.labelled import labelled_entry, only_labelled
    from metastep.data.registry import OMNIGLOT, data_directory, entry_of

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
    from metastep.data.images import save_picture
    from metastep.data.previews import preview
    from metastep.data.sheet import contact_sheet

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
    from metastep.cli.data_check import check_for_episodes, check_for_transfer
    from metastep.data.labelled import OWN, is_parted, labelled_entry, only_labelled
    from metastep.data.previews import describe
    from metastep.data.registry import own_folder

    with refusals():
        if only_labelled(name) or (transfer and labelled_entry(name, data) is not OWN):
            with progress_bar(f"checking {printable(name)}") as progress:
                typer.echo(describe(name, data, progress))
            return
        if transfer or is_parted(name, data):
            check_for_transfer(own_folder(name, data), size, batch)
        else:
            check_for_episodes(name, data, Episodes(ways, shots, queries))


def _described(entry: "Entry | LabelledEntry", splits: str, files: tuple[Path, ...]) -> Iterator[Text]:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    yield Text(entry.name, "bold")
    yield Text(entry.summary).append(f"\nsplits: {splits}\nterms: {entry.licence}", "dim")
    yield Text(f"{printable(files[0])}{more}", "green") if files else Text(entry.source)
