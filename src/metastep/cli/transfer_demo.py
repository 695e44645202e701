"""Scratch, the exact baseline and multi-step estimation side by side, on data that come with metastep."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from metastep.cli.common import unless_stopped
from metastep.errors import how_many
from metastep.report.transfer import write_transfer_report
from metastep.report.weights import save_weights_picture
from metastep.train import presets
from metastep.train.asked_for import require_run_of
from metastep.train.config import Source, Transfer
from metastep.train.metrics import read_metrics
from metastep.train.run import Run
from metastep.train.transfer.epoch import Trained
from metastep.train.transfer.source import source_run
from metastep.train.transfer.train import resume, train

METHODS = {
    "scratch": "digits-sgd-scratch",
    "baseline (n = 1)": "digits-sgd-baseline",
    "Multi-step (n = 2)": "digits-sgd-multistep",
}


def compare_methods(out: Path, epochs: int | None, seed: int, source_epochs: int | None = None) -> None:
    console = Console()
    configs = {name: configured(presets.transfer()[preset], out, epochs, seed) for name, preset in METHODS.items()}
    usual = source_run(replace(presets.transfer()[METHODS["scratch"]], seed=seed))
    first = replace(usual, epochs=source_epochs or usual.epochs)
    console.print(f"[bold]source[/]: {first.net.name} learns {first.data.name}, {how_many(first.epochs, 'epoch')}")
    source = finished(out / "source", first)
    console.print(f"it names {source.test:.1%} of its test pictures")
    results = {}
    for name, config in configs.items():
        few, length = f"{config.data.per_class} labelled pictures of each class", how_many(config.epochs, "epoch")
        console.print(f"[bold]{name}[/]: {config.net.name} learns {config.data.name}, {few}, {length}")
        results[name] = finished(out / folder_name(name), config)
    console.print(comparison_table(results, configs))
    write_pages(out, console)


def configured(config: Transfer, out: Path, epochs: int | None, seed: int) -> Transfer:
    """All of them learn from the same source"""
    source = Source(config.source.net, weights=str((out / "source").resolve()))
    return replace(config, source=source, seed=seed, epochs=epochs or config.epochs)


def finished(folder: Path, config: Transfer) -> Trained:
    """A run that is there already goes on, or is done; one of something else is refused"""
    there = Run.is_there(folder)
    if there:
        require_run_of(config, folder, "--out")
    with unless_stopped():
        return resume(folder) if there else train(config, folder)


def folder_name(method: str) -> str:
    return METHODS[method].rpartition("-")[2]


def comparison_table(results: dict[str, Trained], configs: dict[str, Transfer]) -> Table:
    table = Table(
        title="Digits; test accuracy after the epoch in which validation was best first",
        caption="One seed; seeds differ by more than these ways do. docs/transfer.md has three, and what was tried.",
    )
    for heading in ("", "test", "validation", "rate", "seconds", "second-order products"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, trained in results.items():
        row = (
            f"{trained.test:.1%}",
            f"{trained.best:.1%}",
            f"{configs[name].inner.lr:g}",
            f"{trained.seconds:.0f}",
            f"{configs[name].products} an iteration",
        )
        table.add_row(name, *row)
    return table


def write_pages(out: Path, console: Console) -> None:
    folders = {name: out / folder_name(name) for name in METHODS}
    rows = [(name, read_metrics(Run(folder).metrics_path)) for name, folder in folders.items()]
    save_weights_picture(rows, out / "weights.png")
    write_transfer_report(list(folders.values()), out / "report.html")
    console.print(
        f"What and where was transferred: [bold]{(out / 'weights.png').resolve().as_uri()}[/]", soft_wrap=True
    )
    console.print(f"The report, with all curves: [bold]{(out / 'report.html').resolve().as_uri()}[/]", soft_wrap=True)
