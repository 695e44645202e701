"""Two few-shot learners and an untrained one side by side, on glyphs, which come with metastep."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from metastep.cli.common import progress_bar, unless_stopped
from metastep.cli.use import Checkpoint, open_learner
from metastep.errors import how_many
from metastep.report.write import write_report
from metastep.train import presets
from metastep.train.asked_for import require_run_of
from metastep.train.fewshot import scores
from metastep.train.fewshot.evaluate import Request, evaluate
from metastep.train.fewshot.scores import Evaluation
from metastep.train.fewshot.train import resume, train
from metastep.train.run import Run

# Presets, and what differs from them in the outer loop: 300 iterations want a higher rate, and it wants clipping.
LEARNERS: dict[str, tuple[str, dict[str, float]]] = {
    "Multi-step(4)": ("glyphs-5w1s-multistep4", {"lr": 3e-3, "clip": 0.5}),
    "first order": ("glyphs-5w1s-fomaml", {}),
}


def compare_learners(out: Path, iterations: int, episodes: int) -> None:
    """Train the learners, judge them, and write a report."""
    console = Console()
    runs = {name: out / preset for name, (preset, _) in LEARNERS.items()}
    for name, folder in runs.items():
        console.print(
            f"[bold]{name}[/]: {how_many(iterations, 'iteration')} of meta-training, 5-way 1-shot, on train scripts"
        )
        _train(folder, *LEARNERS[name], iterations)
    results = {"untrained": _judge(runs["Multi-step(4)"], "untrained", episodes)}
    results |= {name: _judge(folder, "best", episodes) for name, folder in runs.items()}
    console.print(_table(results, episodes))
    with progress_bar("writing the report") as progress:
        write_report(list(runs.values()), out / "report.html", 2, None, None, progress)
    page = (out / "report.html").resolve().as_uri()
    console.print(f"The report, with curves, episodes and costs: [bold]{page}[/]", soft_wrap=True)


def _train(folder: Path, preset: str, outer: dict[str, float], iterations: int) -> None:
    """A run that is there already goes on, or is done: the demo can be called again, for the same"""
    config = presets.few_shot()[preset]
    validation = replace(config.validation, every=100)
    config = replace(config, iterations=iterations, validation=validation, outer=replace(config.outer, **outer))  # type: ignore[arg-type]
    with unless_stopped():
        if Run.is_there(folder):
            require_run_of(config, folder, "--out")
            resume(folder)
        else:
            train(config, folder)


def _judge(folder: Path, checkpoint: Checkpoint, episodes: int) -> Evaluation:
    learner = open_learner(folder, checkpoint, None, "auto")
    with progress_bar(f"{episodes} episodes of test scripts") as progress:
        result = evaluate(learner, Request(episodes=episodes), None, progress)
    scores.save(folder, result)
    return result


def _table(results: dict[str, Evaluation], episodes: int) -> Table:
    table = Table(title=f"5-way 1-shot on scripts never seen in training, the same {episodes} episodes for each")
    for heading in ("learner", "accuracy", "95 % interval"):
        table.add_column(heading, justify="left" if heading == "learner" else "right")
    for name, result in results.items():
        table.add_row(name, f"{result.accuracy:.1f} %", f"± {result.interval:.1f}")
    return table
