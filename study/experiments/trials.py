"""Runs that are judged on what is held out for validation, to choose by: several at a time on a GPU, each in a folder.

Ctrl-C and --budget stop cleanly, and the same command continues. Exit status 130 says that there is more to do.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from metastep.errors import NonFiniteError
from metastep.train.config import FewShot, Transfer, Validation
from metastep.train.device import release, uses_gpu
from metastep.train.loop import resume, train
from metastep.train.record import read_metrics
from metastep.train.remembered import require_run_of
from metastep.train.run import Run, how_far
from metastep.train.stop import stop_on_signals
from study import results
from study.budget import within
from study.claims.outcomes import position
from study.tables.curves import draw_accuracies
from study.together import together

TOGETHER = 4  # on a GPU

Trial = Callable[[], str]  # trains as far as it goes; what was wrong with it, if something was


def add_options(parser: argparse.ArgumentParser, iterations: int, runs: str) -> None:
    parser.add_argument("--iterations", type=int, default=iterations)
    parser.add_argument("--looks", type=int, default=10, help="validations of a run")
    parser.add_argument("--episodes", type=int, default=100, help="of a validation")
    parser.add_argument("--together", type=int, default=TOGETHER if uses_gpu("auto") else 1, help="runs at a time")
    parser.add_argument("--budget", type=float, help="seconds; what runs then is kept, and continues")
    parser.add_argument("--runs", type=Path, default=Path("runs", runs), help="the folder for the runs")


def validated(config: FewShot, iterations: int, looks: int, episodes: int) -> FewShot:
    """Return a configuration that trains on training classes alone, and is judged on those held out."""
    every = max(1, iterations // looks)
    return replace(
        config,
        data=replace(config.data, split="train"),
        iterations=iterations,
        validation=Validation(every, episodes),
    )


def usual_precision() -> Literal["tf32", "float32"]:
    return "tf32" if uses_gpu("auto") else "float32"


def trained(config: FewShot | Transfer, folder: Path, data: Path | None) -> str:
    """A trial"""
    try:
        if not Run.is_there(folder):
            train(config, folder, data)
            return ""
        require_run_of(config, folder, "--runs")
        if not position(folder).finished:
            resume(folder, data)
    except NonFiniteError as error:
        return str(error)
    return ""


def complete(
    trials: Mapping[str, Trial], finished: Callable[[str], bool], places: int, budget: float | None
) -> dict[str, str]:
    """Every one as far as time allows; those that ended, or cannot continue, with the reason"""
    ended: dict[str, str] = {}
    with stop_on_signals(), within(budget):
        for name, failure in together(trials.items(), places):
            if failure or finished(name):
                ended[name] = failure
            print(f"{name}: {failure or ('done' if finished(name) else 'stopped')}", flush=True)
            release()
    return ended


def few_shot_row(folder: Path, setting: str, method: str, failure: str) -> dict[str, Any]:
    run = Run.open(folder)
    config, at, seen = run.config(FewShot), how_far(run), validations(run)
    return {
        "setting": setting, "ways": config.data.ways, "implementation": "metastep", "method": method,
        "steps": config.steps, "window": config.window, "tasks": config.tasks, "chunk": config.chunk_size,
        "precision": config.precision, "filters": config.net.options.get("filters"), "rate": config.inner.lr,
        "head": config.net.options.get("head_init"), "iterations": at.iterations,
        "wanted": config.iterations, "seconds": round(at.seconds, 1), "episodes": config.validation.episodes,
        "curve": curve(seen), "interval": percent(seen[-1]["validation_interval"]) if seen else None, "note": failure,
    }  # fmt: skip


def transfer_row(folder: Path, setting: str, method: str, failure: str) -> dict[str, Any]:
    """Report the test at the first best validation, which counts, and that of the last epoch."""
    run = Run.open(folder)
    config, seen = run.config(Transfer), validations(run)
    best = max(seen, key=lambda row: row["validation_accuracy"]) if seen else None  # the first of equals
    return {
        "setting": setting, "implementation": "metastep", "method": method, "steps": config.steps,
        "window": config.window, "tasks": 1, "chunk": None, "precision": config.precision,
        "iterations": seen[-1]["step"] if seen else 0, "epochs": config.epochs,
        "seconds": round(how_far(run).seconds, 1),
        "curve": curve(seen), "best_epoch": best and best["epoch"], "test": best and percent(best["test_accuracy"]),
        "last_test": best and percent(seen[-1]["test_accuracy"]), "note": failure,
    }  # fmt: skip


def curve(seen: list[dict[str, Any]]) -> list[list[float]]:
    return [[row["step"], percent(row["validation_accuracy"])] for row in seen]


def validations(run: Run) -> list[dict[str, Any]]:
    return [row for row in read_metrics(run.metrics_path) if "validation_accuracy" in row]


def percent(share: float) -> float:
    return round(100 * share, 3)


def tell(study: str, command: str, rows: list[dict[str, Any]]) -> None:
    """A file and a picture of what there is; before the first validation there is nothing"""
    if rows:
        path = results.write(study, command, rows)
        draw_accuracies(rows, results.picture_of(path.stem))
        print(path)
