"""The command `metastep`."""

from collections.abc import Callable
from typing import Annotated

import typer

from metastep import __version__
from metastep.cli.data import app as data
from metastep.cli.evaluate import compare_methods, evaluate
from metastep.cli.fields import FieldsCommand
from metastep.cli.presets import learners, presets
from metastep.cli.train import demo, resume, train
from metastep.cli.use import classify, play, report

app = typer.Typer(
    name="metastep",
    help="Gradient-based meta-learning made cheap.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
commands: dict[str, Callable[..., None]] = {
    "train": train, "resume": resume, "evaluate": evaluate, "classify": classify, "compare": compare_methods,
    "report": report, "presets": presets, "learners": learners, "demo": demo,
    "play": play,
}  # fmt: skip
# Unknown options of these are fields: --inner.lr 0.1 is inner.lr=0.1.
TAKES_FIELDS = ("train", "resume")
for name, command in commands.items():
    fields = name in TAKES_FIELDS
    own = FieldsCommand if fields else None
    app.command(name, cls=own, context_settings={"ignore_unknown_options": fields})(command)
app.add_typer(data, name="data")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"metastep {__version__}")
        raise typer.Exit


@app.callback()
def metastep(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Gradient-based meta-learning made cheap."""
