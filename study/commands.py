"""The command `python -m study`: benchmarks, the claims of the paper, experiments, and the tables in docs."""

import ast
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from metastep.cli.common import refusals
from metastep.errors import MetastepError, did_you_mean
from study.bench.command import app as bench
from study.claims.command import reproduce
from study.counts import counts
from study.tables import pages
from study.tutorials import tutorials
from study.words import words

EXPERIMENTS = Path(__file__).parent / "experiments"
HELP = ("-h", "--help")

app = typer.Typer(name="study", help="What metastep costs, reproduces and was tried on.", no_args_is_help=True)
app.add_typer(bench, name="bench")
app.command("claims")(reproduce)
app.command()(counts)
app.command()(tutorials)
app.command()(words)


def experiments() -> dict[str, str]:
    """Return each experiment with the first line of its docstring. They are the files that have a function `main`."""
    trees = {path.stem: ast.parse(path.read_text()) for path in sorted(EXPERIMENTS.glob("*.py"))}
    return {name: _first_line(tree) for name, tree in trees.items() if _has_main(tree)}


def _has_main(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)


def _first_line(tree: ast.Module) -> str:
    return (ast.get_docstring(tree) or "").partition("\n")[0]


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def run(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="An experiment. What follows it is for it, --help too.")] = None,
) -> None:
    """Run one experiment and write its results. Without a name, list all of them."""
    known = experiments()
    if name is None or name in HELP:
        typer.echo("python -m study run NAME [OPTIONS]\n\n" + "\n".join(f"{n:17}{line}" for n, line in known.items()))
        return
    with refusals():
        if name not in known:
            guess = did_you_mean(name, known)
            raise MetastepError(f"there is no experiment {name!r}.{guess} Choose one of {', '.join(known)}.")
        sys.argv = [f"python -m study run {name}", *context.args]
        import_module(f"study.experiments.{name}").main()


@app.command()
def tables(
    check: Annotated[bool, typer.Option("--check", help="Only say whether they are in step.")] = False,
    figures: Annotated[bool, typer.Option("--figures", help="Draw the figures, too.")] = False,
) -> None:
    """Write the tables in docs that are made from results."""
    if figures:
        pages.draw()
    pages.write(check)
