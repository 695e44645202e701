"""The command `metastep`."""

from collections.abc import Callable
from typing import Annotated

import typer

from metastep import __version__, quiet
from metastep.bench.command import app as bench
from metastep.data.commands import app as data
from metastep.demo import demo
from metastep.fewshot.commands import presets, train
from metastep.fewshot.comparing import compare_methods
from metastep.fewshot.distributed import run_rank
from metastep.fewshot.use_commands import classify, evaluate, report
from metastep.reproduce.command import reproduce
from metastep.transfer.commands import app as transfer

app = typer.Typer(
    name="metastep",
    help="Gradient-based meta-learning made cheap.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
commands: dict[str, Callable[..., None]] = {
    "demo": demo, "train": train, "evaluate": evaluate, "classify": classify, "compare": compare_methods,
    "report": report, "presets": presets, "reproduce": reproduce,
}  # fmt: skip
for name, command in commands.items():
    app.command(name)(command)
app.add_typer(transfer, name="transfer")
app.add_typer(data, name="data")
app.add_typer(bench, name="bench")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"metastep {__version__}")
        raise typer.Exit


@app.callback()
def metastep(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Gradient-based meta-learning made cheap."""


def main() -> None:
    quiet.end()
    run_rank(app)
