"""`metastep evaluate` of a transfer run."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from metastep.cli.bars import Bar, add_bars
from metastep.cli.common import progress_bar
from metastep.data.errors import printable
from metastep.errors import MetastepError

if TYPE_CHECKING:
    from metastep.train.transfer.evaluate import Evaluation

PARTS, CHECKPOINTS = ("test", "val", "train"), ("best", "last")


def evaluate_transfer(run: Path, given: dict[str, Any], of_few_shot: dict[str, Any], as_json: bool) -> None:
    """Measure accuracy, as a whole and for each class, by running statistics.

    of_few_shot: What was asked for that only a few-shot learner has.
    """
    from metastep.train.transfer import evaluate as evaluating

    if asked := [name for name, value in of_few_shot.items() if value]:
        raise MetastepError(f"--{asked[0].replace('_', '-')}: this is a transfer run, which has none. Leave it out.")
    for name, choices in (("split", PARTS), ("checkpoint", CHECKPOINTS)):
        if given[name] not in choices:
            raise MetastepError(f"--{name} {given[name]}: of a transfer run, choose one of {', '.join(choices)}.")
    with progress_bar("reading pictures") as progress:
        result = evaluating.evaluate(run, progress=progress, **given)
    typer.echo(evaluating.to_json(result)) if as_json else _print(result)


def _print(result: "Evaluation") -> None:
    console = Console()
    headline = Text(f"{result.accuracy:.2f} %", "bold green")
    where = f"{result.pictures:,} {result.split} pictures of {printable(result.dataset)}"
    headline.append(f"  {where}, {result.checkpoint} checkpoint (epoch {result.epoch})", "default")
    console.print(headline, soft_wrap=True)
    table = Table(header_style="bold", border_style="dim")
    table.add_column("class", overflow="fold")
    for heading in ("pictures", "accuracy"):
        table.add_column(heading, justify="right", no_wrap=True)
    number = len(result.classes)
    add_bars(table, number)
    for each in result.classes:
        name, accuracy = Text(printable(each.name)), f"{each.accuracy:.2f} %"
        table.add_row(name, str(each.pictures), accuracy, Bar(each.accuracy, number))
    console.print(table)
