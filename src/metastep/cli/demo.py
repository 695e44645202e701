"""`metastep demo`: both jobs from beginning to end, on data that comes with metastep."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from metastep.cli.common import refusals


def demo(
    job: Annotated[Literal["few-shot", "transfer"], typer.Argument(help="What to see.")] = "few-shot",
    out: Annotated[
        Path | None, typer.Option(help="The folder for the runs and the report.", show_default="demo, or transfer")
    ] = None,
    iterations: Annotated[int, typer.Option(min=1, max=10**9, help="few-shot: iterations for each learner.")] = 300,
    episodes: Annotated[int, typer.Option(min=2, max=10**7, help="few-shot: episodes to judge by.")] = 600,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, max=10**9, help="transfer: epochs of each way.", show_default="the presets'"),
    ] = None,
    source_epochs: Annotated[
        int | None,
        typer.Option(min=1, max=10**9, help="transfer: epochs of the source.", show_default="the presets'"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="transfer: of nets, order and augmentation.")] = 0,
) -> None:
    """Train on data that comes with metastep, judge, and write a report; minutes on two cores.

    few-shot: two learners of glyphs, beside an untrained one. transfer: handwritten digits from few labels, taught by
    a net that knows letters; from scratch, with what and where to transfer learned exactly, and by multi-step
    estimation. Called again, it goes on where it stopped.
    """
    if job == "few-shot":
        from metastep.cli.train_demo import compare_learners

        with refusals():
            compare_learners(out or Path("demo"), iterations, episodes)
    else:
        from metastep.cli.transfer_demo import compare_methods

        with refusals():
            compare_methods(out or Path("transfer"), epochs, seed, source_epochs)
