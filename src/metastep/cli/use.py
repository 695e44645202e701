"""`metastep classify`, `report` and `play`, and how a learner is found and opened."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from metastep.cli.common import Data, Plugin, plain_table, progress_bar, refusals
from metastep.cli.fields import complete_learners
from metastep.data.errors import printable
from metastep.errors import MetastepError, how_many
from metastep.train.presets import find_learner
from metastep.train.schema import Device, Ink

if TYPE_CHECKING:
    from metastep.train.fewshot.classify import Classified
    from metastep.train.fewshot.learner import Learner


Checkpoint = Literal["best", "last", "untrained"]

LearnerName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="The folder of a run, a learner's file, or a learner that comes with metastep.",
        autocompletion=complete_learners,
    ),
]
CheckpointChoice = Annotated[
    Checkpoint,
    typer.Option(help="Of a run: its best in validation (else the last), its last, or what it began with."),
]
Net = Annotated[str | None, typer.Option(help="A net of your own, named again: it is not imported otherwise.")]
DeviceChoice = Annotated[Device, typer.Option(help="auto takes a GPU where there is one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")]


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
    from metastep.report.sheet import gallery, save_picture
    from metastep.train.fewshot import classify as classifying
    from metastep.train.fewshot.evaluate import with_steps

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
    """Write one self-contained HTML page about one run, or several side by side."""
    from metastep.report.page import write_report

    with refusals():
        with progress_bar("writing the report") as progress:
            missing = write_report(runs, out, episodes, net, data, progress)
        typer.echo(f"{printable(out)}: {how_many(len(runs), 'run')}")
        for reason in missing:
            typer.echo(f"Predictions and costs are not in it. {reason}")


def open_learner(path: Path, checkpoint: Checkpoint, net: str | None, device: Device) -> "Learner":
    from metastep.train.device import device_for
    from metastep.train.fewshot.job import begin_from_start
    from metastep.train.fewshot.learner import Learner

    learner = Learner.load(path, "last" if checkpoint == "last" else "best", net)
    if checkpoint == "untrained":
        learner = replace(Learner.fresh(learner.config), checkpoint=checkpoint)
        begin_from_start(learner, path)
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


def print_classified(result: "Classified", ink: Ink) -> None:
    from metastep.report.sheet import RIGHT, WRONG

    console = Console()
    table = plain_table(
        "picture", "prediction", "probability", *["class"] * bool(result.judged), numbers=["probability"]
    )
    for prediction in result.predictions:
        known = "" if prediction.truth is None else RIGHT if prediction.truth == prediction.name else WRONG
        cells = [Text(printable(prediction.path)), Text(printable(prediction.name), f"bold {known}")]
        truth = [Text(printable(prediction.truth or ""))] if result.judged else []
        table.add_row(*cells, f"{100 * prediction.probability:.1f} %", *truth)
    console.print(table)
    for line in remarks(result, ink):
        console.print(Text(line), soft_wrap=True)


def remarks(result: "Classified", ink: Ink) -> Iterator[str]:
    """Return the text below the table."""
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


# ---- a page to draw on, on this computer


def play(
    learner: Annotated[
        str, typer.Argument(help="The folder of a run, a learner's file, or a learner that comes with metastep.")
    ] = "omniglot-5w1s",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes any that is free.")
    ] = 8765,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Others can reach this computer by 0.0.0.0.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    net: Net = None,
    device: DeviceChoice = "auto",
    plugin: Plugin = None,
) -> None:
    """Open a page: draw a few examples of each class, and see a learner name new drawings."""
    import webbrowser

    from metastep.play.server import Server, is_local
    from metastep.play.session import Session

    with refusals():
        session = Session.of(open_learner(find_learner(learner), "best", net, device))
        with Server(session, host, port) as server:
            try:
                typer.echo(f"Draw at {server.url} (Ctrl-C ends it)")
                if not is_local(host):
                    typer.echo("Everyone who can reach this computer can use the page: it has no password.")
                if browser and has_screen():
                    webbrowser.open(server.url)
                server.serve_forever()
            except KeyboardInterrupt:
                typer.echo("\nStopped.")


def has_screen() -> bool:
    """Return whether a browser can open a window; without one, Linux would start a browser in the terminal."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
