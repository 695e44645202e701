"""What all commands share: where the data are, a bar while they wait, and one line for what cannot work."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress as Bar

from metastep.data.progress import Progress
from metastep.errors import MetastepError

Data = Annotated[
    Path | None, typer.Option("--data", help="The data directory.", envvar="METASTEP_DATA", show_envvar=True)
]


@contextmanager
def refusals() -> Iterator[None]:
    """What cannot work ends with one line and exit status 2."""
    try:
        yield
    except MetastepError as error:
        typer.echo(f"metastep: {error}", err=True)
        raise typer.Exit(2) from None


@contextmanager
def progress_bar(doing: str) -> Iterator[Progress]:
    """A bar that is gone when all is done; none where there is no terminal."""
    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(doing.replace("[", r"\["), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)
