"""`metastep train` and `metastep presets`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metastep.cli.common import UNFINISHED, Data, progress_bar, quoted, refusals
from metastep.cli.flags import require_none
from metastep.cli.presets import Out, begun_with, default_folder, preset_named, presets_command
from metastep.cli.train_flags import FLAGS, with_flags
from metastep.data.errors import printable
from metastep.errors import how_many
from metastep.train.fewshot.config import TrainConfig

if TYPE_CHECKING:
    from metastep.step.ranks import Ranks
    from metastep.train.fewshot.train import Trained

DEFAULT = "glyphs-5w1s-multistep4"

Preset = Annotated[
    str | None,
    typer.Option(
        help="What to start from; every other flag changes it.", show_default=f"{DEFAULT}; with --start, the learner's"
    ),
]
ResumeOrLengthen = Annotated[
    Path | None,
    typer.Option(
        help="Go on with the run in this folder; with --iterations, until it has made so many; with --dataset, where "
        "its pictures were moved to."
    ),
]


def train(
    *,
    preset: Preset = None,
    out: Out = None,
    data: Data = None,
    resume: ResumeOrLengthen = None,
    **options: Any,
) -> None:
    """Meta-train a few-shot learner. With torchrun, the tasks of an iteration are shared among its processes."""
    from metastep.step.ranks import started_ranks
    from metastep.train.device import uses_gpu
    from metastep.train.fewshot import train as training

    given = {name: value for name, value in options.items() if value is not None}
    with refusals():
        if resume is not None:
            _resume(resume, data, given | begun_with(preset, None, out))
            return
        name, usual = begun_from(preset, given)
        config = with_flags(usual, given)
        folder = out or default_folder(name, usual.data.name, config.data.name, config.method.name)
        with started_ranks(uses_gpu(config.device)) as ranks:
            reading = progress_bar(f"reading {printable(config.data.name)}")
            _report(training.train(config, folder, data, ranks, reading), config, folder, ranks)


def begun_from(preset: str | None, given: dict[str, Any]) -> tuple[str, TrainConfig]:
    """A preset, or else what the learner was trained with that is to be the start; and what to call it"""
    from metastep.train.fewshot.beginning import as_trained

    start = given.get("start")
    if preset is None and start:
        return f"from-{Path(start).stem}", as_trained(start, given.get("net"))
    return preset or DEFAULT, preset_of(preset or DEFAULT)


def _resume(folder: Path, data: Path | None, given: dict[str, Any]) -> None:
    from metastep.step.ranks import started_ranks
    from metastep.train.device import uses_gpu
    from metastep.train.fewshot import train as training
    from metastep.train.fewshot.longer import iterations_made
    from metastep.train.run import Run

    net, iterations, dataset = (given.pop(name, None) for name in ("net", "iterations", "dataset"))
    require_none(given)
    run = Run.open(folder)
    device, before = run.config(TrainConfig).device, iterations_made(run)
    with started_ranks(uses_gpu(device)) as ranks:
        trained = training.resume(folder, data, net, ranks, iterations, dataset)
        if before == trained.iterations == run.config(TrainConfig).outer.iterations:
            _say_complete(before, run.config(TrainConfig), folder, ranks)
        else:
            _report(trained, run.config(TrainConfig), folder, ranks)


def _say_complete(iterations: int, config: TrainConfig, folder: Path, ranks: "Ranks") -> None:
    if ranks.is_first:
        more = f" For more: metastep train --resume {quoted(folder)} --iterations {2 * iterations}"
        more = more if config.outer.schedule == "constant" else ""
        typer.echo(f"All {iterations:,} iterations were made before.{more}")


def _report(trained: "Trained", config: TrainConfig, folder: Path, ranks: "Ranks") -> None:
    if not ranks.is_first:
        return
    done = f"{how_many(trained.iterations, 'iteration')} in {trained.seconds:.0f} s"
    best = f", best validation accuracy {trained.best:.1%}" if trained.best is not None else ""
    if trained.iterations < config.outer.iterations:
        typer.echo(f"Stopped after {done}{best}. Go on with: metastep train --resume {quoted(folder)}")
        raise typer.Exit(UNFINISHED)
    typer.echo(f"{done}{best}. Judge it with: metastep evaluate {quoted(folder)}")


def _summary(config: TrainConfig) -> tuple[str, str]:
    inner, outer, method = config.inner, config.outer, config.method
    momentum = f", momentum {inner.momentum:g}" if inner.momentum else ""
    window = f"({method.window})" if method.window else ""
    return (
        f"{config.net.name}: {inner.steps} × {inner.optimizer} at {inner.lr:g}{momentum}",
        f"{method.name}{window}: {outer.iterations:,} × {outer.tasks} tasks, {outer.optimizer} at {outer.lr:g}",
    )


def known_presets() -> Mapping[str, TrainConfig]:
    """Return all presets. The core checks them when they are imported, and loads torch."""
    from metastep.train.fewshot.presets import PRESETS

    return PRESETS


def preset_of(name: str) -> TrainConfig:
    return preset_named(name, known_presets(), "metastep presets")


presets = presets_command(known_presets, _summary, "metastep presets")
FLAGS.attach(train)
