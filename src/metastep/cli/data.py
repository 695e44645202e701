"""`metastep data`: what data sets there are, what their episodes look like, what is wrong with a folder."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from metastep.cli.common import Data, plain_table, progress_bar, refusals
from metastep.cli.fields import complete_data_sets
from metastep.data.episodes import Episodes
from metastep.data.errors import printable, problem
from metastep.errors import how_many

if TYPE_CHECKING:
    from metastep.data.registry import DataSet as Kind

app = typer.Typer(no_args_is_help=True, help="List, download, show and check data sets.")


def _at_least_one(of_what: str) -> Any:
    return typer.Option(min=1, help=of_what)


Ways = Annotated[int, _at_least_one("Classes in an episode.")]
Shots = Annotated[int, _at_least_one("Pictures of each class to adapt to.")]
Queries = Annotated[int, _at_least_one("Pictures of each class to be judged by.")]
DataSet = Annotated[
    str,
    typer.Argument(help="One of `metastep data list`, folder:PATH, or a path.", autocompletion=complete_data_sets),
]


@app.command("list")
def list_data_sets(data: Data = None) -> None:
    """List the data sets: what they are, on what terms, and where they are or can be had."""
    from metastep.data.files import entries
    from metastep.data.registry import data_directory, data_sets, find

    with refusals():
        root = data or data_directory()
        if root is not None:
            entries(root.expanduser())  # says so if the folder cannot be opened at all
        found = find(root.expanduser()) if root is not None else {}
        table = plain_table("name", "what", "where", title="each for episodes and for transfer")
        for name, kind in sorted(data_sets().items(), key=_usual_first):
            table.add_row(*_described(name, kind, found.get(name, ())), end_section=True)
        console = Console()
        console.print(table)
        directory = printable(root) if root is not None else "none; name one with --data or METASTEP_DATA"
        console.print(Text(f"data directory: {directory}"))


@app.command()
def get(
    name: Annotated[
        str,
        typer.Argument(
            help="A data set that may be downloaded freely, such as omniglot.", autocompletion=complete_data_sets
        ),
    ],
    data: Data = None,
) -> None:
    """Download a data set into the data directory. What breaks off is continued when it is called again."""
    from metastep.data.download import get
    from metastep.data.registry import data_directory, data_set, is_own

    with refusals():
        root = data or data_directory()
        kind = data_set("folder" if is_own(name, root) else name)
        if root is None and kind.downloads:
            raise problem(name, "where to?", "Name a data directory with --data or METASTEP_DATA")
        with progress_bar(f"downloading {printable(name)}") as progress:
            paths = get(kind, name, (root or Path()).expanduser(), progress)
        typer.echo(f"{name}: {', '.join(printable(path) for path in paths)}")


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
    from metastep.data.check import preview
    from metastep.data.registry import load
    from metastep.report.sheet import contact_sheet, require_drawable, require_place, save_picture

    with refusals():
        if out is not None:
            require_place(out)
        asked = Episodes(ways, shots, queries)
        require_drawable(asked, episodes)
        with progress_bar(f"reading {printable(name)}") as progress:
            label, split, pictures = preview(load(name, data, progress=progress), split)
        title = f"{printable(name)} · {split} · {ways}-way {shots}-shot · seed {seed}"
        path = out or Path(f"{label}-{split}.png")
        save_picture(contact_sheet(pictures, asked, episodes, seed, title), path)
        classes = how_many(len(pictures.names), "class", "classes")
        typer.echo(f"{printable(path)}: {how_many(episodes, 'episode')} out of {classes}")


@app.command()
def check(
    name: DataSet,
    ways: Ways = 5,
    shots: Shots = 1,
    queries: Queries = 5,
    transfer: Annotated[
        bool, typer.Option("--transfer", help="For training a transfer preset, where all classes are trained on.")
    ] = False,
    size: Annotated[int, _at_least_one("For transfer: pixels along the side that pictures are made.")] = 16,
    batch: Annotated[int, typer.Option(min=2, help="For transfer: pictures in an iteration.")] = 25,
    data: Data = None,
) -> None:
    """List everything that is wrong with a folder of your own pictures, and whether there are enough of them.

    For few-shot learning, which splits can serve such episodes; with --transfer, how many pictures of each class would
    be trained on, validated with and tested on. Exit status 1 if anything is wrong, or too little.
    """
    from metastep.cli.data_check import check_folder_for_transfer, check_for_episodes
    from metastep.data.check import described
    from metastep.data.folder import Folder, has_parts
    from metastep.data.registry import load

    with refusals():
        found = load(name, data)
        if isinstance(found, Folder) and (transfer or has_parts(found.root)):
            check_folder_for_transfer(found.root, size, batch)
        elif transfer or found.view == "labels":
            with progress_bar(f"checking {printable(name)}") as progress:
                said = described(replace(found, progress=progress))
            typer.echo(said)
        else:
            check_for_episodes(found, Episodes(ways, shots, queries))


def _usual_first(item: tuple[str, "type[Kind]"]) -> tuple[bool, bool, str]:
    """Data sets for episodes, then for transfer; those that need no data directory first"""
    name, kind = item
    return kind.view != "episodes", not kind.embedded, name


def _described(name: str, kind: "type[Kind]", files: tuple[Path, ...]) -> Iterator[Text]:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    yield Text(name, "bold")
    yield Text(kind.summary).append(f"\nfor transfer: {kind.labelled_in_words}\nterms: {kind.licence}", "dim")
    get = f"metastep data get {name}, or " if kind.downloads else ""
    yield Text(f"{printable(files[0])}{more}", "green") if files else Text(f"{get}{kind.source}")
