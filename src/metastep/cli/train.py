"""`metastep train` and `metastep resume`, for few-shot learning and for transfer."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metastep.cli.common import UNFINISHED, Data, Plugin, import_torch, progress_bar, quoted, refusals
from metastep.cli.fields import attach, changes_of
from metastep.data.errors import printable
from metastep.errors import MetastepError, did_you_mean, how_many
from metastep.train.config import Config, FewShot, Transfer

if TYPE_CHECKING:
    from metastep.step.ranks import Ranks
    from metastep.train.fewshot.train import Trained
    from metastep.train.transfer.epoch import Trained as Taught

DEFAULT = "glyphs-5w1s-multistep4"
AGAIN = {  # what a run that goes on may be told, and what the parameter is called
    "few_shot": {"net.name": "net", "iterations": "iterations", "data.name": "dataset"},
    "transfer": {
        "net.name": "target_net", "source.net": "source_net", "data.name": "target_data",
        "source.dataset": "source_data",
    },
}  # fmt: skip

Out = Annotated[
    Path | None, typer.Option(help="The folder of the run.", show_default="runs/PRESET, of other data runs/DATA-METHOD")
]
Changes = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FIELD=VALUE]...", help="Changes, such as inner.lr=0.1 method=maml.", show_default=False),
]


def train(
    begin: Annotated[str, typer.Argument(metavar="[PRESET|FILE.toml|LEARNER]", help="What to start from.")] = DEFAULT,
    changes: Changes = None,
    *,
    out: Out = None,
    data: Data = None,
    plugin: Plugin = None,
    **options: Any,
) -> None:
    """Train: a preset, a TOML file, or a learner to go on from, with changes.

    Every field below can be given as FIELD=VALUE or as --FIELD VALUE. `metastep presets` lists the presets, and
    `metastep presets NAME --toml` prints a file to start from. With torchrun, the tasks of an iteration of few-shot
    learning are shared among its processes.
    """
    from metastep.train.overrides import overridden, split

    import_torch()
    with refusals():
        words = list(changes or [])
        if "=" in begin and not Path(begin).exists():
            begin, words = DEFAULT, [begin, *words]
        typed = changes_of(words, options)
        name, usual = begun_from(begin, typed)
        if isinstance(usual, FewShot):
            few_shot = overridden(usual, typed)
            folder = out or default_folder(name, usual.data.name, few_shot.data.name, few_shot.method_name)
            _train_few_shot(few_shot, folder, data)
        else:
            typed = with_net_of_source(typed)
            transfer = overridden(usual, typed)
            require_own_source(name, usual, transfer, {split(change)[0] for change in typed})
            folder = out or default_folder(name, usual.data.name, transfer.data.name, transfer.method_name)
            _train_transfer(transfer, folder, data)


def begun_from(start: str, typed: list[str]) -> tuple[str, FewShot | Transfer]:
    """Return what a run is called, and the configuration that it starts from."""
    from metastep.train import presets
    from metastep.train.fewshot.shipped import shipped

    if start in presets.known():
        return start, presets.preset(start)
    path = Path(start).expanduser()
    if path.suffix == ".toml":
        return path.stem, presets.read(path)
    if path.exists() or start in shipped():
        from metastep.train.fewshot.beginning import as_trained

        return f"from-{path.stem}", replace(as_trained(start, _net_of(typed)), start=start)
    guess = did_you_mean(start, [*presets.known(), *shipped()])
    raise MetastepError(
        f"there is no preset, file or learner {start!r}.{guess} `metastep presets` and `metastep learners` list them."
    )


def _net_of(typed: list[str]) -> str | None:
    from metastep.train.overrides import split

    return next((text for key, text in map(split, typed) if key in ("net", "net.name")), None)


def default_folder(preset: str, own_data: str, data: str, method: str) -> Path:
    """The preset's name is for runs of the preset's own data"""
    if data == own_data:
        return Path("runs", preset)
    name = re.sub(r"[^\w.]+", "-", Path(data.removeprefix("folder:")).resolve().name)
    return Path("runs", f"{name}-{method}")


def _train_few_shot(config: FewShot, folder: Path, data: Path | None) -> None:
    from metastep.step.ranks import started_ranks
    from metastep.train.device import uses_gpu
    from metastep.train.fewshot import train as training

    with started_ranks(uses_gpu(config.device)) as ranks:
        reading = progress_bar(f"reading {printable(config.data.name)}")
        _report_few_shot(training.train(config, folder, data, ranks, reading), config, folder, ranks)


def _train_transfer(config: Transfer, folder: Path, data: Path | None) -> None:
    from metastep.train.transfer import train as training

    reading = progress_bar(f"reading {printable(config.data.name)}")
    _report_transfer(training.train(config, folder, data, reading), config, folder)


def with_net_of_source(typed: list[str]) -> list[str]:
    """An earlier run that is to be the source says which net it trained; one of a user's own has to be named again"""
    from metastep.core.registry import names
    from metastep.train.overrides import split
    from metastep.train.run import Run

    given = dict(map(split, typed))
    weights = given.get("source.weights")
    if weights is None or "source.net" in given or not Run.is_there(folder := Path(weights).expanduser()):
        return typed
    net = Run.open(folder).config(Transfer).net.name
    return typed + ([f"source.net={net}"] if net in names("net") else [])


def require_own_source(preset: str, usual: Transfer, config: Transfer, given: set[str]) -> None:
    """A source that a preset would train was chosen for the preset's pictures: who brings others names one for them"""
    if config.data.name == usual.data.name or not config.trains_source or "source.dataset" in given:
        return
    raise MetastepError(
        f"data.name = {printable(config.data.name)}: from whom is it to learn? The source of {preset}, trained on "
        f"{config.source.dataset}, is for {usual.data.name}. Name one with source.weights=, a file or an earlier run, "
        "or what to train one on with source.dataset=; or do without, with method=scratch."
    )


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FIELD=VALUE]...",
            help="iterations= for a longer few-shot run; data= and source.dataset= where folders of pictures were "
            "moved to; net= and source.net= to name nets of your own again.",
            show_default=False,
        ),
    ] = None,
    *,
    data: Data = None,
    plugin: Plugin = None,
) -> None:
    """Go on with a run from its last checkpoint, as if it had not been interrupted."""
    from metastep.train.run import Run

    import_torch()
    with refusals():
        job = Run.open(run).job
        again = _again(job, changes_of(changes or [], {}))
        if issubclass(job, FewShot):
            _resume_few_shot(run, data, again)
        else:
            _resume_transfer(run, data, again)


def _again(job: type[Config], typed: list[str]) -> dict[str, Any]:
    from metastep.train.overrides import split

    known, found = AGAIN[job.job], dict.fromkeys(AGAIN[job.job].values())
    for key, text in map(split, typed):
        name = known.get(key) or known.get(f"{key}.name")
        if name is None:
            raise MetastepError(
                f"{key}: a run goes on as it was configured; only {', '.join(known)} can be given. Leave it out, or "
                "start a new run."
            )
        found[name] = text
    return found


def _resume_few_shot(folder: Path, data: Path | None, again: dict[str, Any]) -> None:
    from metastep.step.ranks import started_ranks
    from metastep.train.device import uses_gpu
    from metastep.train.fewshot import train as training
    from metastep.train.fewshot.longer import iterations_made
    from metastep.train.overrides import overridden
    from metastep.train.run import Run

    run = Run.open(folder)
    config, before = run.config(FewShot), iterations_made(run)
    wanted = again.pop("iterations")
    iterations = wanted and overridden(config, [f"iterations={wanted}"]).iterations
    with started_ranks(uses_gpu(config.device)) as ranks:
        trained = training.resume(folder, data, ranks=ranks, iterations=iterations, **again)
        config = run.config(FewShot)
        if before == trained.iterations == config.iterations:
            _say_complete(before, config, folder, ranks)
        else:
            _report_few_shot(trained, config, folder, ranks)


def _resume_transfer(folder: Path, data: Path | None, again: dict[str, Any]) -> None:
    from metastep.train.run import Run
    from metastep.train.transfer import train as training

    config = Run.open(folder).config(Transfer)
    _report_transfer(training.resume(folder, data, **again), config, folder)


def _say_complete(iterations: int, config: FewShot, folder: Path, ranks: "Ranks") -> None:
    if ranks.is_first:
        more = f" For more: metastep resume {quoted(folder)} iterations={2 * iterations}"
        more = more if config.outer.schedule == "constant" else ""
        typer.echo(f"All {iterations:,} iterations were made before.{more}")


def _report_few_shot(trained: "Trained", config: FewShot, folder: Path, ranks: "Ranks") -> None:
    if not ranks.is_first:
        return
    done = f"{how_many(trained.iterations, 'iteration')} in {trained.seconds:.0f} s"
    best = f", best validation accuracy {trained.best:.1%}" if trained.best is not None else ""
    if trained.iterations < config.iterations:
        typer.echo(f"Stopped after {done}{best}. Go on with: metastep resume {quoted(folder)}")
        raise typer.Exit(UNFINISHED)
    typer.echo(f"{done}{best}. Judge it with: metastep evaluate {quoted(folder)}")


def _report_transfer(trained: "Taught", config: Transfer, folder: Path) -> None:
    done = _epochs_done(trained, config)
    best = ""
    if trained.best is not None and trained.test is not None:
        best = (
            f"; best validation accuracy {trained.best:.1%} after epoch {trained.best_epoch}, test {trained.test:.1%}"
        )
    if trained.epoch < config.epochs:
        typer.echo(f"Stopped after {done}{best}. Go on with: metastep resume {quoted(folder)}")
        raise typer.Exit(UNFINISHED)
    typer.echo(f"{done}{best}. See it with: metastep report {quoted(folder)}")


def _epochs_done(trained: "Taught", config: Transfer) -> str:
    from metastep.train.transfer.epoch import StoppedBefore
    from metastep.train.transfer.source import source_run

    if isinstance(trained, StoppedBefore):
        first, epochs = trained.source, source_run(config).epochs
        return f"{first.epoch} of {epochs} epochs of the source in {first.seconds:.0f} s, before the target's turn"
    return f"{trained.epoch} of {config.epochs} epochs in {trained.seconds:.0f} s"


attach(train)
