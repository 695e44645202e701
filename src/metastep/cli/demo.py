"""`metastep demo`: the main job from beginning to end, on data that comes with metastep."""

from pathlib import Path
from typing import Annotated

import typer

from metastep.cli.common import refusals


def demo(
    out: Annotated[Path, typer.Option(help="The folder for the two runs and the report.")] = Path("demo"),
    iterations: Annotated[int, typer.Option(min=1, help="Iterations of meta-training, for each learner.")] = 300,
    episodes: Annotated[int, typer.Option(min=2, help="Episodes to judge each learner by.")] = 600,
) -> None:
    """Meta-train two few-shot learners on glyphs, judge them beside an untrained one, and write a report."""
    from metastep.cli.train_demo import compare_learners

    with refusals():
        compare_learners(out, iterations, episodes)
