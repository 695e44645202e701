"""`metastep transfer`: the embedded comparison, and with a word after it, runs of one's own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from metastep.cli.bars import Bar, add_bars
from metastep.cli.common import UNFINISHED, Data, progress_bar, quoted, refusals
from metastep.cli.flags import require_none
from metastep.cli.presets import Out, PresetName, Resume, begun_with, default_folder, preset_named, presets_command
from metastep.cli.transfer_flags import FLAGS
from metastep.data.errors import printable
from metastep.errors import MetastepError
from metastep.train.fields import Device
from metastep.train.transfer.config import TransferConfig
from metastep.train.transfer.presets import PRESETS

if TYPE_CHECKING:
    from metastep.train.transfer.epoch import Trained
    from metastep.train.transfer.evaluate import Evaluation

DEFAULT = "digits-sgd-multistep"

app = typer.Typer()


@app.callback(invoke_without_command=True)
def transfer(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The folder for the runs and the report.")] = Path("transfer"),
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Of each way; the source has --source-epochs.", show_default="as in the presets"),
    ] = None,
    source_epochs: Annotated[
        int | None, typer.Option(min=1, help="Of the source, which is trained first.", show_default="as in the presets")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of nets, order and augmentation.")] = 0,
) -> None:
    """Teach a small net handwritten digits from few labels, by a net that knows letters.

    Three ways side by side: from scratch, with what and where to transfer learned exactly, and by multi-step
    estimation. The data come with metastep; a few minutes on two cores. Called again, it goes on where it stopped.
    """
    if context.invoked_subcommand is None:
        from metastep.cli.transfer_demo import compare_methods

        with refusals():
            compare_methods(out, epochs, seed, source_epochs)


def run(
    *,
    preset: PresetName = DEFAULT,
    out: Out = None,
    data: Data = None,
    resume: Resume = None,
    **options: Any,
) -> None:
    """Train a target net: with what and where to transfer learned, from scratch, or by fine-tuning."""
    from metastep.train.transfer import train as training

    given = {name: value for name, value in options.items() if value is not None}
    with refusals():
        if resume is not None:
            _resume(resume, data, given | begun_with(preset, DEFAULT, out))
            return
        usual, given = preset_of(preset), with_net_of_source(given)
        config = FLAGS.applied(usual, given)
        require_own_source(preset, usual, config, given)
        folder = out or default_folder(preset, usual.data.name, config.data.name, config.method.name)
        reading = progress_bar(f"reading {printable(config.data.name)}")
        with FLAGS.spoken():
            trained = training.train(config, folder, data, reading)
        _report(trained, config, folder)


def with_net_of_source(given: dict[str, Any]) -> dict[str, Any]:
    """An earlier run that is to be the source says which net it trained; one of a user's own has to be named again"""
    from metastep.core.registry import names
    from metastep.train.run import Run

    weights = given.get("source_weights")
    if weights is None or "source_net" in given or not Run.is_there(folder := Path(weights).expanduser()):
        return given
    net = Run.open(folder).config(TransferConfig).target.net
    return given | ({"source_net": net} if net in names("net") else {})


def require_own_source(preset: str, usual: TransferConfig, config: TransferConfig, given: dict[str, Any]) -> None:
    """A source that a preset would train was chosen for the preset's pictures: who brings others names one for them"""
    if config.data.name == usual.data.name or not config.trains_source or "source_data" in given:
        return
    raise MetastepError(
        f"--target-data {printable(config.data.name)}: from whom is it to learn? The source of {preset}, trained on "
        f"{config.source.dataset}, is for {usual.data.name}. Name one with --source-weights, a file or an earlier run, "
        "or what to train one on with --source-data; or do without, with --method scratch."
    )


def _resume(folder: Path, data: Path | None, given: dict[str, Any]) -> None:
    from metastep.train.run import Run
    from metastep.train.transfer import train as training

    again = {name: given.pop(name, None) for name in ("source_net", "target_net", "source_data", "target_data")}
    require_none(given)
    config = Run.open(folder).config(TransferConfig)
    with FLAGS.spoken():
        trained = training.resume(folder, data, **again)
    _report(trained, config, folder)


def _report(trained: "Trained", config: TransferConfig, folder: Path) -> None:
    done = _done(trained, config)
    best = ""
    if trained.best is not None and trained.test is not None:
        best = (
            f"; best validation accuracy {trained.best:.1%} after epoch {trained.best_epoch}, test {trained.test:.1%}"
        )
    if trained.epoch < config.epochs:
        typer.echo(f"Stopped after {done}{best}. Go on with: metastep transfer run --resume {quoted(folder)}")
        raise typer.Exit(UNFINISHED)
    typer.echo(f"{done}{best}. See it with: metastep report {quoted(folder)}")


def _done(trained: "Trained", config: TransferConfig) -> str:
    from metastep.train.transfer.epoch import StoppedBefore
    from metastep.train.transfer.source import source_run

    if isinstance(trained, StoppedBefore):
        first, epochs = trained.source, source_run(config).epochs
        return f"{first.epoch} of {epochs} epochs of the source in {first.seconds:.0f} s, before the target's turn"
    return f"{trained.epoch} of {config.epochs} epochs in {trained.seconds:.0f} s"


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a transfer run.")],
    split: Annotated[Literal["test", "val", "train"], typer.Option(help="The part of its data.")] = "test",
    checkpoint: Annotated[Literal["best", "last"], typer.Option(help="Best in validation, or last.")] = "best",
    target_net: Annotated[
        str | None, typer.Option(help="A net of your own, named again: it is not imported otherwise.")
    ] = None,
    target_data: Annotated[
        str | None, typer.Option(help="Where its folder of pictures is, as folder:PATH, if it was moved.")
    ] = None,
    device: Annotated[Device, typer.Option(help="auto takes a GPU where there is one.")] = "auto",
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
) -> None:
    """Measure accuracy, as a whole and for each class, by running statistics."""
    from metastep.train.transfer import evaluate as evaluating

    with refusals():
        with progress_bar("reading pictures") as progress:
            result = evaluating.evaluate(run, split, checkpoint, data, target_net, progress, device, target_data)
        typer.echo(evaluating.to_json(result)) if as_json else _print_evaluation(result)


def _print_evaluation(result: "Evaluation") -> None:
    console = Console()
    headline = Text(f"{result.accuracy:.2f} %", "bold green")
    where = f"{result.pictures:,} {result.split} pictures of {printable(result.dataset)}"
    headline.append(f"  {where}, {result.checkpoint} checkpoint (epoch {result.epoch})", "default")
    console.print(headline, soft_wrap=True)
    table = Table(header_style="bold", border_style="dim")
    table.add_column("class", overflow="fold")
    for heading in ("pictures", "accuracy"):
        table.add_column(heading, justify="right", no_wrap=True)
    number = len(result.classes)
    add_bars(table, number)
    for each in result.classes:
        name, accuracy = Text(printable(each.name)), f"{each.accuracy:.2f} %"
        table.add_row(name, str(each.pictures), accuracy, Bar(each.accuracy, number))
    console.print(table)


def _summary(config: TransferConfig) -> tuple[str, str]:
    data, method, inner = config.data, config.method, config.inner
    few = f", {data.per_class} of each" if data.per_class else ""
    nets = config.target.net if method.name == "scratch" else f"{config.source.net} → {config.target.net}"
    steps = f", T = {config.steps}, n = {config.window}" if config.learns_weights else ""
    return (
        f"{data.name} {data.size}×{data.size}{few}: {nets}",
        f"{method.name}{steps}: {config.epochs} epochs, {inner.optimizer} at {inner.lr:g}",
    )


def preset_of(name: str) -> TransferConfig:
    return preset_named(name, PRESETS, "metastep transfer presets")


presets = presets_command(lambda: PRESETS, _summary, "metastep transfer presets")
FLAGS.attach(run)
for command in (run, evaluate):
    app.command()(command)
app.command("presets")(presets)
