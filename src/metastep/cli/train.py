"""`metastep train`, `resume` and `demo`, for few-shot learning and for transfer."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from metastep.cli.common import UNFINISHED, Data, Plugin, import_torch, progress_bar, quoted, refusals
from metastep.cli.fields import attach, changes_of, complete_changes, complete_starts
from metastep.core.registry import names
from metastep.data.errors import printable
from metastep.errors import MetastepError, did_you_mean, how_many
from metastep.train import presets
from metastep.train.config import Config, FewShot, Transfer
from metastep.train.presets import overridden, shipped, split

if TYPE_CHECKING:
    from metastep.train.run import Trained


DEFAULT = "glyphs-5w1s-multistep4"
Out = Annotated[
    Path | None, typer.Option(help="The folder of the run.", show_default="runs/PRESET, of other data runs/DATA-METHOD")
]
Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FIELD=VALUE]...",
        help="Changes, such as inner.lr=0.1 method=maml.",
        show_default=False,
        autocompletion=complete_changes,
    ),
]


def train(
    begin: Annotated[
        str,
        typer.Argument(
            metavar="[PRESET|FILE.toml|LEARNER]", help="What to start from.", autocompletion=complete_starts
        ),
    ] = DEFAULT,
    changes: Changes = None,
    *,
    out: Out = None,
    data: Data = None,
    plugin: Plugin = None,
    **options: Any,
) -> None:
    """Train a preset, a TOML file or a learner, with changes.

    Every field below can be given as FIELD=VALUE or as --FIELD VALUE. `metastep presets` lists the presets, and
    `metastep presets NAME --toml` prints a file to start from. With torchrun, the tasks of an iteration of few-shot
    learning are shared among its processes.
    """
    import_torch()
    with refusals():
        words = list(changes or [])
        if "=" in begin and not Path(begin).exists():
            begin, words = DEFAULT, [begin, *words]
        typed = changes_of(words, options)
        name, usual = begun_from(begin, typed)
        if isinstance(usual, Transfer):
            typed = with_net_of_source(typed)
        config = overridden(usual, typed)
        if isinstance(usual, Transfer) and isinstance(config, Transfer):
            require_own_source(name, usual, config, {split(change)[0] for change in typed})
        _train(config, out or default_folder(name, usual.data.name, config.data.name, config.method_name), data)


def begun_from(start: str, typed: list[str]) -> tuple[str, FewShot | Transfer]:
    """Return what a run is called, and the configuration that it starts from."""
    if start in presets.known():
        return start, presets.preset(start)
    path = Path(start).expanduser()
    if path.suffix == ".toml":
        return path.stem, presets.read(path)
    if path.exists() or start in shipped():
        from metastep.train.fewshot.job import as_trained

        return f"from-{path.stem}", replace(as_trained(start, _net_of(typed)), start=start)
    guess = did_you_mean(start, [*presets.known(), *shipped()])
    raise MetastepError(
        f"there is no preset, file or learner {start!r}.{guess} `metastep presets` and `metastep learners` list them."
    )


def _net_of(typed: list[str]) -> str | None:
    return next((text for key, text in map(split, typed) if key in ("net", "net.name")), None)


def default_folder(preset: str, own_data: str, data: str, method: str) -> Path:
    """The preset's name is for runs of the preset's own data"""
    if data == own_data:
        return Path("runs", preset)
    name = re.sub(r"[^\w.]+", "-", Path(data.removeprefix("folder:")).resolve().name)
    return Path("runs", f"{name}-{method}")


def _train(config: FewShot | Transfer, folder: Path, data: Path | None) -> None:
    from metastep.step.ranks import started_ranks
    from metastep.train import loop
    from metastep.train.device import uses_gpu

    with started_ranks(uses_gpu(config.device)) as ranks:
        reading = progress_bar(f"reading {printable(config.data.name)}")
        _report(loop.train(config, folder, data, ranks, reading), config, folder, ranks.is_first)


def with_net_of_source(typed: list[str]) -> list[str]:
    """An earlier run that is to be the source says which net it trained; one of a user's own has to be named again"""
    from metastep.train.run import Run

    given = dict(map(split, typed))
    weights = given.get("source.weights")
    if weights is None or "source.net" in given or not Run.is_there(folder := Path(weights).expanduser()):
        return typed
    net = Run.open(folder).config(Transfer).net.name
    return typed + ([f"source.net={net}"] if net in names("net") else [])


def require_own_source(preset: str, usual: Transfer, config: Transfer, given: set[str]) -> None:
    """Refuse other pictures without a source of their own: a preset's source was chosen for the preset's pictures."""
    if config.data.name == usual.data.name or not config.trains_source or "source.dataset" in given:
        return
    raise MetastepError(
        f"data.name = {printable(config.data.name)}: which source should teach it? The source of {preset}, trained on "
        f"{config.source.dataset}, is for {usual.data.name}. Name one with source.weights=, a file or an earlier run, "
        "or what to train one on with source.dataset=; or do without, with method=scratch."
    )


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FIELD=VALUE]...",
            help="iterations= for a longer few-shot run; data=, data.test= and source.dataset= where folders of "
            "pictures were moved to; net= and source.net= to name nets of your own again.",
            show_default=False,
            autocompletion=complete_changes,
        ),
    ] = None,
    *,
    data: Data = None,
    plugin: Plugin = None,
) -> None:
    """Continue a run from its last checkpoint, as if it had not been interrupted."""
    import_torch()
    with refusals():
        _resume(run, data, dict(map(_field, changes_of(changes or [], {}))))


def _field(change: str) -> tuple[str, str]:
    """The whole name of a field, and its text"""
    key, text = split(change)
    return (f"{key}.name" if key in ("net", "data") else key), text


def _resume(folder: Path, data: Path | None, changes: dict[str, str]) -> None:
    from metastep.step.ranks import started_ranks
    from metastep.train import loop
    from metastep.train.device import uses_gpu
    from metastep.train.run import Run, how_far

    run = Run.open(folder)
    before = how_far(run).iterations
    with started_ranks(uses_gpu(run.config(Config).device)) as ranks:
        trained, config = loop.resume(folder, data, changes, ranks), run.config(Config)
        if before and before == trained.iterations and trained.finished:
            _say_complete(config, folder, ranks.is_first)
        else:
            _report(trained, config, folder, ranks.is_first)


def _say_complete(config: Config, folder: Path, is_first: bool) -> None:
    if is_first:
        longer = "iterations" in config.may_change and config.outer.schedule == "constant"
        more = f" For more: metastep resume {quoted(folder)} iterations={2 * config.length}" if longer else ""
        typer.echo(f"All {how_many(config.length, config.unit)} were made before.{more}")


def _report(trained: "Trained", config: Config, folder: Path, is_first: bool) -> None:
    if not is_first:
        return
    done = _done(trained, config)
    if not trained.finished:
        typer.echo(f"Stopped after {done}. Continue with: metastep resume {quoted(folder)}")
        raise typer.Exit(UNFINISHED)
    typer.echo(f"{done}. Judge it with: metastep evaluate {quoted(folder)}")


def _done(trained: "Trained", config: Config) -> str:
    if trained.source:
        made = _made(trained.source, "epoch")
        return f"{made} of the source in {trained.source.seconds:.0f} s, before the target's turn"
    done = f"{_made(trained, config.unit)} in {trained.seconds:.0f} s"
    if trained.best is None:
        return done
    test = "" if trained.test is None else f" after {config.unit} {trained.best_epoch}, test {trained.test:.1%}"
    return f"{done}, best validation accuracy {trained.best:.1%}{test}"


def _made(trained: "Trained", unit: str) -> str:
    whole = how_many(trained.total // trained.epoch, unit)
    return whole if trained.finished else f"{trained.length:,} of {whole}"


attach(train)


def demo(
    job: Annotated[Literal["few-shot", "transfer"], typer.Argument(help="What to see.")] = "few-shot",
    out: Annotated[
        Path | None, typer.Option(help="The folder for the runs and the report.", show_default="demo, or transfer")
    ] = None,
    iterations: Annotated[int, typer.Option(min=1, max=10**9, help="few-shot: iterations for each learner.")] = 500,
    episodes: Annotated[int, typer.Option(min=2, max=10**7, help="few-shot: episodes to judge by.")] = 300,
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

    few-shot: three learners of glyphs and an untrained one. transfer: handwritten digits from few labels, taught by
    a net that knows letters; from scratch, with what and where to transfer learned exactly, and by multi-step
    estimation. Run again, it continues where it stopped.
    """
    from metastep.cli.demo import compare_learners, compare_methods

    with refusals():
        if job == "few-shot":
            compare_learners(out or Path("demo"), iterations, episodes)
        else:
            compare_methods(out or Path("transfer"), epochs, seed, source_epochs)
