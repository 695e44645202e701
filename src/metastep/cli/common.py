"""What all commands share: where the data are, a bar while they wait, tables, one line for what cannot work."""

import shlex
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from metastep.data.errors import Progress, printable
from metastep.errors import MetastepError, first_line
from metastep.train.stop import raise_at_ctrl_c, stop_on_signals

UNFINISHED = 130  # the exit status of a command that was stopped and can continue, as after Ctrl-C
Data = Annotated[
    Path | None, typer.Option("--data", help="The data directory.", envvar="METASTEP_DATA", show_envvar=True)
]


def _imported(modules: list[str] | None) -> list[str] | None:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # a plug-in under way lies mostly in the folder that one works in
    for name in modules or []:
        try:
            import_module(name)
        except Exception as error:  # a user's module may fail in any way
            typer.echo(f"metastep: --plugin {name}: {first_line(error)} ({type(error).__name__}).", err=True)
            raise typer.Exit(2) from None
    return modules


Plugin = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        callback=_imported,
        is_eager=True,  # before --help, which lists what it registers
        help="A module that registers optimizers, methods, nets or data sets.",
        show_default=False,
    ),
]


def quoted(path: Path) -> str:
    """Return a path as one pastes it into a shell."""
    return shlex.quote(printable(path))


@contextmanager
def refusals() -> Iterator[None]:
    """End with one line: with exit status 2 if something cannot work, with 130 after Ctrl-C.

    A command imports what is slow to import before it enters this block: until then Ctrl-C ends the process quietly.
    """
    try:
        with raise_at_ctrl_c():
            yield
    except MetastepError as error:
        typer.echo(f"metastep: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo("metastep: stopped.", err=True)
        raise typer.Exit(UNFINISHED) from None


def import_torch() -> None:
    """Import what is slow to import: call it before `refusals`, where Ctrl-C may not reach it."""
    import_module("torch")


@contextmanager
def unless_stopped() -> Iterator[None]:
    """End with one line and exit status 130 if the work inside was asked to stop."""
    with stop_on_signals() as stop:
        yield
    if stop.requested:
        typer.echo("Stopped. Run it again to continue.")
        raise SystemExit(UNFINISHED)  # and not typer's, which only commands of its own understand


@contextmanager
def progress_bar(doing: str) -> Iterator[Progress]:
    """A bar that is gone when all is done; none where there is no terminal."""
    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(doing.replace("[", r"\["), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


def plain_table(*headings: str, numbers: Collection[str] = (), **style: Any) -> Table:
    """Return a table for these columns. Those of `numbers` stand at the right, and are never cut."""
    table = Table(**{"title_justify": "left", "header_style": "bold", "border_style": "dim", **style})
    for heading in headings:
        number = heading in numbers
        table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
    return table


def open_table(*headings: str, numbers: Collection[str] = ()) -> Table:
    """Return a table without lines."""
    return plain_table(*headings, numbers=numbers, box=None, padding=(0, 2, 0, 0))
