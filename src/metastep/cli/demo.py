"""Train, judge and show what `metastep demo` promises. Run again, it continues where it stopped."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from metastep.cli.common import plain_table, progress_bar, unless_stopped
from metastep.cli.use import open_learner
from metastep.report.page import write_report
from metastep.train import presets
from metastep.train.config import Config, Source, Transfer
from metastep.train.evaluate import OnEpisodes, save
from metastep.train.fewshot.evaluate import Request, evaluate
from metastep.train.loop import resume, train
from metastep.train.presets import overridden
from metastep.train.remembered import require_run_of
from metastep.train.run import Run, Trained
from metastep.train.transfer.building import source_run

TASKS = 4  # in each iteration, so that a demo takes a minute
# Presets, and the part of the iterations: one of exact MAML takes 8 gradients and products, not 2.
LEARNERS = {
    "Multi-step(4)": ("glyphs-5w1s-multistep4", 1.0),
    "exact MAML, equal time": ("glyphs-5w1s-maml", 0.4),
    "first order": ("glyphs-5w1s-fomaml", 1.0),
}
METHODS = {
    "scratch": "digits-sgd-scratch",
    "baseline (n = 1)": "digits-sgd-baseline",
    "Multi-step (n = 2)": "digits-sgd-multistep",
}


def compare_learners(out: Path, iterations: int, episodes: int) -> None:
    """Train three few-shot learners on glyphs, and judge them with an untrained one."""
    folders = {name: out / preset for name, (preset, _) in LEARNERS.items()}
    seconds = {"untrained": 0.0}
    for name, (preset, part) in LEARNERS.items():
        length = max(1, round(part * iterations))
        shorter = [f"iterations={length}", f"validation.every={length}", f"tasks={TASKS}"]
        seconds[name] = finished(folders[name], overridden(presets.preset(preset), shorter), name).seconds
    results = {"untrained": _judged(folders["Multi-step(4)"], episodes, untrained=True)}
    results |= {name: _judged(folder, episodes) for name, folder in folders.items()}
    title = f"5-way 1-shot on scripts never seen in training, the same {episodes} episodes for each"
    rows = (
        (name, f"{found.accuracy:.1f} %", f"± {found.interval:.1f}", f"{seconds[name]:.0f}")
        for name, found in results.items()
    )
    _show(title, ("learner", "accuracy", "95 % interval", "seconds of training"), rows, folders.values(), out)


def _judged(folder: Path, episodes: int, untrained: bool = False) -> OnEpisodes:
    learner = open_learner(folder, "untrained" if untrained else "best", None, "auto")
    with progress_bar(f"{episodes} episodes of test scripts") as progress:
        result = evaluate(learner, Request(episodes=episodes), None, progress)
    save(folder, result)
    return result


def compare_methods(out: Path, epochs: int | None, seed: int, source_epochs: int | None = None) -> None:
    """Train a target from scratch, taught exactly, and taught by multi-step estimation, all from one source."""
    configs = {name: configured(presets.transfer()[preset], out, epochs, seed) for name, preset in METHODS.items()}
    usual = source_run(replace(presets.transfer()[METHODS["scratch"]], seed=seed))
    finished(out / "source", replace(usual, epochs=source_epochs or usual.epochs), "source")
    folders = {name: out / METHODS[name].rpartition("-")[2] for name in METHODS}
    trained = {name: finished(folders[name], config, name) for name, config in configs.items()}
    rows = (
        (name, f"{trained[name].test:.1%}", f"{trained[name].best:.1%}", f"{config.inner.lr:g}",
         f"{trained[name].seconds:.0f}", f"{config.products} an iteration")
        for name, config in configs.items()
    )  # fmt: skip
    headings = ("", "test", "validation", "rate", "seconds", "second-order products")
    title = "Digits: test accuracy at the epoch with the best validation accuracy"
    caption = "One seed. Seeds differ by more than these ways do: see docs/transfer-results.md."
    _show(title, headings, rows, folders.values(), out, caption)


def configured(config: Transfer, out: Path, epochs: int | None, seed: int) -> Transfer:
    """Return the configuration with the source that all of them learn from."""
    source = Source(config.source.net, weights=str((out / "source").resolve()))
    return replace(config, source=source, seed=seed, epochs=epochs or config.epochs)


def finished(folder: Path, config: Config, name: str = "") -> Trained:
    """Train a run to its end. An existing run continues, or is done; a run of something else is refused."""
    Console().print(f"[bold]{name}[/]: {config.in_short}")
    there = Run.is_there(folder)
    if there:
        require_run_of(config, folder, "--out")
    with unless_stopped():
        return resume(folder) if there else train(config, folder)


def _show(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    runs: Iterable[Path],
    out: Path,
    caption: str = "",
) -> None:
    """A table, and where the report is"""
    table = plain_table(*headings, numbers=headings[1:], title=title, caption=caption)
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    with progress_bar("writing the report") as progress:
        write_report(list(runs), out / "report.html", progress=progress)
    page = (out / "report.html").resolve().as_uri()
    console.print(f"The report, with curves, predictions and costs: [bold]{page}[/]", soft_wrap=True)
