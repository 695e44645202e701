"""The page about few-shot runs: curves, evaluations, episodes, what a method costs."""

from collections.abc import Sequence
from dataclasses import dataclass

from metastep.report import figures
from metastep.report.collect import RunReport
from metastep.report.page import rendered
from metastep.train.fewshot.scores import Evaluation, Mean, paired_difference

FIGURES = (
    ("Training loss", "Mean over the tasks of an iteration, after adaptation.", figures.loss_figure),
    ("Training accuracy", "On the queries of training tasks.", figures.accuracy_figure),
    (
        "Validation accuracy",
        "On classes that are not trained on; the band is the 95 % interval.",
        figures.validation_figure,
    ),
    ("Validation accuracy over time", "The same against the time that training took.", figures.time_figure),
    (
        "Accuracy by adaptation step",
        "In the evaluation of each run; the band is the 95 % interval.",
        figures.step_figure,
    ),
    (
        "Change of the inner gradient",
        "‖∇L(φₜ₊₁) − ∇L(φₜ)‖ / ‖∇L(φₜ₊₁)‖, median and quartiles over tasks. Small: a gradient can be shared.",
        figures.difference_figure,
    ),
)


@dataclass(frozen=True)
class Row:
    """An evaluation in the table"""

    run: RunReport
    evaluation: Evaluation
    against_first: Mean | None
    earlier: bool
    """Whether the weights have changed since"""


def render(runs: Sequence[RunReport]) -> str:
    return rendered(
        "report.html",
        runs,
        [(title, note, draw(runs)) for title, note, draw in FIGURES],
        rows=[row for run in runs for row in rows_of(run, runs[0])],
        differences=[run.headline and paired(run.headline, runs[0]) for run in runs],
    )


def rows_of(run: RunReport, first: RunReport) -> list[Row]:
    return [
        Row(
            run,
            e,
            paired(e, first) if e != first.headline else None,
            run.is_earlier(e),
        )
        for e in sorted(
            run.evaluations, key=lambda e: (e.split, e.ways, e.shots, bool(e.one_by_one), e.checkpoint, e.steps)
        )
    ]


def paired(evaluation: Evaluation, first: RunReport) -> Mean | None:
    """Against what speaks for the first run, on the same episodes"""
    return paired_difference(evaluation, first.headline) if first.headline else None
