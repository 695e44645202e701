"""The command `python -m study`: benchmarks, the claims of the paper, experiments, and the tables in docs."""

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from metastep.cli.common import refusals
from metastep.errors import MetastepError, did_you_mean
from study.bench.command import app as bench
from study.claims.command import reproduce
from study.counts import counts
from study.tables import pages

EXPERIMENTS = Path(__file__).parent / "experiments"

app = typer.Typer(name="study", help="What metastep costs, reproduces and was tried on.", no_args_is_help=True)
app.add_typer(bench, name="bench")
app.command("claims")(reproduce)
app.command()(counts)


def experiments() -> list[str]:
    """Return the names that `python -m study run` knows: the files that can be run."""
    return sorted(path.stem for path in EXPERIMENTS.glob("*.py") if "__main__" in path.read_text())


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def run(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="An experiment; all that follows is for it, --help too.")],
) -> None:
    """Run one experiment and write its results."""
    with refusals():
        if name not in experiments():
            guess = did_you_mean(name, experiments())
            raise MetastepError(f"there is no experiment {name!r}.{guess} Choose one of {', '.join(experiments())}.")
        sys.argv = [f"python -m study run {name}", *context.args]
        runpy.run_module(f"study.experiments.{name}", run_name="__main__", alter_sys=False)


@app.command()
def tables(check: Annotated[bool, typer.Option("--check", help="Only say whether they are in step.")] = False) -> None:
    """Write the tables in docs that are made from results."""
    pages.write(check)
