"""`metastep evaluate`, `classify` and `report`: what a learner is worth, and what it is for."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from metastep.cli.bars import Bar, add_bars
from metastep.cli.common import Data, Plugin, progress_bar, refusals
from metastep.data.episodes import Rotations
from metastep.data.errors import printable
from metastep.errors import MetastepError, how_many
from metastep.train.errors import RunError
from metastep.train.fewshot.choices import EVALUATION_SEED, Ink
from metastep.train.fewshot.shipped import find_learner
from metastep.train.fields import Device

if TYPE_CHECKING:
    from metastep.train.fewshot.classify import Classified
    from metastep.train.fewshot.learner import Learner
    from metastep.train.fewshot.scores import Evaluation


def _asked(least: int, of_what: str) -> Any:
    return typer.Option(min=least, max=100_000, help=of_what, show_default="as trained")


Checkpoint = Literal["best", "last", "untrained"]

LearnerName = Annotated[
    str,
    typer.Argument(metavar="RUN", help="The folder of a run, a learner's file, or a learner that comes with metastep."),
]
CheckpointChoice = Annotated[
    Checkpoint,
    typer.Option(help="Of a run: its best in validation (else the last), its last, or what it began with."),
]
Net = Annotated[str | None, typer.Option(help="A net of your own, named again: it is not imported otherwise.")]
DeviceChoice = Annotated[Device, typer.Option(help="auto takes a GPU where there is one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")]


def evaluate(
    run: LearnerName,
    episodes: Annotated[int, typer.Option(min=2, max=10**7, help="How many are drawn.")] = 600,
    ways: Annotated[int | None, _asked(2, "Classes in an episode.")] = None,
    shots: Annotated[int | None, _asked(1, "Pictures to adapt to.")] = None,
    queries: Annotated[int | None, _asked(1, "Pictures to name.")] = None,
    rotations: Annotated[
        Rotations | None, typer.Option(help="Quarter turns of the classes.", show_default="as it is to be judged")
    ] = None,
    steps: Annotated[
        str | None, typer.Option(help="Inner steps, or windows such as 4,2,1,1.", show_default="as trained")
    ] = None,
    exact_steps: Annotated[
        bool, typer.Option("--exact-steps", help="A gradient for every step, where training shared one in a window.")
    ] = False,
    dataset: Annotated[str | None, typer.Option(help="Another data set.", show_default="as trained")] = None,
    split: Annotated[
        str, typer.Option(help="train, val, trainval, test or all; of a transfer run, test, val or train.")
    ] = "test",
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Chooses the episodes.")] = EVALUATION_SEED,
    one_by_one: Annotated[
        bool, typer.Option("--one-by-one", help="Judge each query by itself, as classify does; slower.")
    ] = False,
    checkpoint: CheckpointChoice = "best",
    net: Net = None,
    device: DeviceChoice = "auto",
    data: Data = None,
    as_json: AsJson = False,
    plugin: Plugin = None,
) -> None:
    """Measure accuracy: of a few-shot learner on new episodes, of a transfer run on the pictures of a part.

    On episodes it is the mean with its 95 % interval, and how it grows with every adaptation step.
    """
    from metastep.cli.evaluate_transfer import evaluate_transfer
    from metastep.train.config import Transfer
    from metastep.train.fewshot import evaluate as evaluating, scores
    from metastep.train.run import Run

    with refusals():
        if Run.is_there(folder := Path(run).expanduser()) and issubclass(Run.open(folder).job, Transfer):
            given = {
                "split": split, "checkpoint": checkpoint, "data": data, "target_net": net, "device": device,
                "target_data": dataset,
            }  # fmt: skip
            few_shot = {
                "ways": ways, "shots": shots, "queries": queries, "rotations": rotations, "steps": steps,
                "exact_steps": exact_steps, "one_by_one": one_by_one,
            }  # fmt: skip
            evaluate_transfer(folder, given, few_shot, as_json)
            return
        request = evaluating.Request(
            ways, shots, queries, rotations, parsed_steps(steps), exact_steps, dataset, split, episodes, seed,
            one_by_one,
        )  # fmt: skip
        path = find_learner(run)
        learner = open_learner(path, checkpoint, net, device)
        with progress_bar("evaluating") as progress:
            result = evaluating.evaluate(learner, request, data, progress)
        saved, failure = kept(path, result)  # first: who reads the output may stop before its end
        typer.echo(scores.to_json(result)) if as_json else print_evaluation(result)
        if failure:
            typer.echo(f"metastep: not saved: {failure}", err=True)
        elif saved and not as_json:
            Console().print(Text(f"saved as {printable(saved)}", "dim"), soft_wrap=True)


def kept(path: Path, result: "Evaluation") -> tuple[Path | None, RunError | None]:
    """Where, if it is of a run; a folder that cannot be written takes nothing away from what was found"""
    from metastep.train.fewshot import scores

    try:
        return (scores.save(path, result) if path.is_dir() else None), None
    except RunError as error:
        return None, error


def classify(
    run: LearnerName,
    support: Annotated[Path, typer.Option(help="A folder with one sub-folder of pictures for each class.")],
    query: Annotated[Path, typer.Option(help="The pictures to name: a folder, sub-folders in it, or one file.")],
    picture: Annotated[
        Path | None, typer.Option(help="Draw the queries with their predictions into this file.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, nothing else.")] = False,
    as_json: AsJson = False,
    steps: Annotated[
        str | None, typer.Option(help="Inner steps, or windows such as 4,2,1,1.", show_default="as trained")
    ] = None,
    ink: Annotated[Ink, typer.Option(help="Drawings: is the ink darker or lighter than the paper?")] = "auto",
    together: Annotated[
        bool, typer.Option("--together", help="Let queries help each other; good if all classes are among them alike.")
    ] = False,
    checkpoint: CheckpointChoice = "best",
    net: Net = None,
    device: DeviceChoice = "auto",
    plugin: Plugin = None,
) -> None:
    """Adapt to classes of your own, a few pictures of each, and name other pictures."""
    from metastep.data.images import save_picture
    from metastep.train.fewshot import classify as classifying
    from metastep.train.fewshot.evaluate import with_steps
    from metastep.train.fewshot.gallery import gallery

    with refusals():
        if as_csv and as_json:
            raise MetastepError("--csv and --json: only one of them can be printed. Leave one out.")
        learner = with_steps(open_learner(find_learner(run), checkpoint, net, device), parsed_steps(steps))
        with progress_bar("reading pictures") as progress:
            result = classifying.classify(learner, support, query, ink, together, progress)
        if as_csv or as_json:
            typer.echo((result.to_csv() if as_csv else result.to_json()).rstrip("\n"))
            for line in remarks(result, ink):
                typer.echo(f"metastep: {line}", err=True)
        else:
            print_classified(result, ink)
        if picture is not None:
            save_picture(gallery(result), picture)
            if not (as_csv or as_json):
                Console().print(Text(f"drawn in {printable(picture)}", "dim"), soft_wrap=True)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, to be compared if several.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    episodes: Annotated[int, typer.Option(min=0, max=1_000, help="Episodes to show for each run.")] = 2,
    net: Net = None,
    data: Data = None,
    plugin: Plugin = None,
) -> None:
    """Write one HTML page, which needs nothing else, about one run or several side by side."""
    from metastep.report.write import write_report

    with refusals():
        with progress_bar("writing the report") as progress:
            missing = write_report(runs, out, episodes, net, data, progress)
        typer.echo(f"{printable(out)}: {how_many(len(runs), 'run')}")
        for reason in missing:
            typer.echo(f"Episodes, inner gradients and costs are not in it. {reason}")


def open_learner(path: Path, checkpoint: Checkpoint, net: str | None, device: Device) -> "Learner":
    from metastep.train.device import device_for
    from metastep.train.fewshot.beginning import begin_again
    from metastep.train.fewshot.learner import Learner

    learner = Learner.load(path, "last" if checkpoint == "last" else "best", net)
    if checkpoint == "untrained":
        learner = replace(Learner.fresh(learner.config), checkpoint=checkpoint)
        begin_again(learner, path)
        learner.net.eval()  # as a learner that is loaded
    return learner.to(device_for(device))


def parsed_steps(text: str | None) -> int | tuple[int, ...] | None:
    if text is None:
        return None
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise MetastepError(f"--steps {text}: give a number such as 8, or windows such as 4,2,1,1.") from None
    return numbers if len(numbers) > 1 else numbers[0]


def print_evaluation(result: "Evaluation") -> None:
    console = Console()
    headline = Text(f"{result.accuracy:.2f} ± {result.interval:.2f} %", "bold green")
    setting = f"{result.ways}-way {result.shots}-shot, {result.queries} queries of each class"
    setting += "".join(f", {each}" for each in result.peculiar)
    judged_by = f"{result.episodes} episodes of {printable(result.dataset)}, {result.split}"
    headline.append("  " + "; ".join(filter(None, (setting, judged_by, weights_of(result)))), "default")
    console.print(headline, soft_wrap=True)
    if result.not_finite:
        lost = (
            f"{how_many(result.not_finite, 'episode')} left the finite numbers: what is not predicted counts as wrong."
        )
        console.print(Text(lost, "yellow"), soft_wrap=True)
    console.print(step_table(result))


def weights_of(result: "Evaluation") -> str:
    return f"{result.checkpoint} checkpoint" if result.checkpoint in ("best", "last") else result.checkpoint


def step_table(result: "Evaluation") -> Table:
    table = Table(header_style="bold", border_style="dim")
    for heading in ("steps", "accuracy", "95 %"):
        table.add_column(heading, justify="right", no_wrap=True)
    add_bars(table, result.ways)
    for score in result.by_step:
        numbers = str(score.step), f"{score.accuracy:.2f} %", f"± {score.interval:.2f}"
        table.add_row(*numbers, Bar(score.accuracy, result.ways))
    return table


def print_classified(result: "Classified", ink: Ink) -> None:
    from metastep.train.fewshot.gallery import RIGHT, WRONG

    console = Console()
    table = Table(header_style="bold", border_style="dim")
    for heading in ("picture", "prediction"):
        table.add_column(heading, overflow="fold")
    table.add_column("probability", justify="right")
    if result.judged:
        table.add_column("class", overflow="fold")
    for prediction in result.predictions:
        known = "" if prediction.truth is None else RIGHT if prediction.truth == prediction.name else WRONG
        cells = [Text(printable(prediction.path)), Text(printable(prediction.name), f"bold {known}")]
        truth = [Text(printable(prediction.truth or ""))] if result.judged else []
        table.add_row(*cells, f"{100 * prediction.probability:.1f} %", *truth)
    console.print(table)
    for line in remarks(result, ink):
        console.print(Text(line), soft_wrap=True)


def remarks(result: "Classified", ink: Ink) -> Iterator[str]:
    """What is said below the table"""
    if result.accuracy is not None:
        right = sum(prediction.name == prediction.truth for prediction in result.judged)
        yield f"{right} of {len(result.judged)} right: {result.accuracy:.1f} %"
    for path, reason in result.unreadable.items():
        yield f"left out: {printable(path)}: {reason}"
    number = len(result.support) + len(result.query)
    if result.drawings and ink == "auto" and result.inverted:
        yield (
            f"{result.inverted} of {number} pictures were inverted: next to their border the ink is dark, and this "
            "learner knows bright ink on black. Say --ink light if that is wrong."
        )
