"""`metastep evaluate` and `compare`: what a learner or a run is worth, and how good approximations are for it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from metastep.cli.common import Data, Plugin, open_table, plain_table, progress_bar, refusals
from metastep.cli.use import AsJson, CheckpointChoice, DeviceChoice, LearnerName, Net, open_learner, parsed_steps
from metastep.data.episodes import Rotations
from metastep.data.errors import printable
from metastep.errors import MetastepError, how_many
from metastep.train import presets
from metastep.train.config import Config, FewShot, Transfer
from metastep.train.io import RunError
from metastep.train.presets import find_learner
from metastep.train.schema import EVALUATION_SEED

if TYPE_CHECKING:
    from metastep.core.suggest import Suggestion
    from metastep.report.comparison import Compared
    from metastep.train.evaluate import Evaluation, OnEpisodes, OnPictures


CELLS = 30
FILLED, EMPTY, CHANCE = "█", "·", "┊"
PARTS, CHECKPOINTS = ("test", "val", "train"), ("best", "last")  # of a transfer run


def _asked(least: int, of_what: str) -> Any:
    return typer.Option(min=least, max=100_000, help=of_what, show_default="as trained")


def evaluate(
    run: LearnerName,
    episodes: Annotated[int, typer.Option(min=2, max=10**7, help="How many are drawn.")] = 600,
    ways: Annotated[int | None, _asked(2, "Classes in an episode.")] = None,
    shots: Annotated[int | None, _asked(1, "Pictures to adapt to.")] = None,
    queries: Annotated[int | None, _asked(1, "Pictures to name.")] = None,
    rotations: Annotated[
        Rotations | None, typer.Option(help="Quarter turns of the classes.", show_default="as it is to be judged")
    ] = None,
    steps: Annotated[
        str | None, typer.Option(help="Inner steps, or windows such as 4,2,1,1.", show_default="as trained")
    ] = None,
    exact_steps: Annotated[
        bool, typer.Option("--exact-steps", help="A gradient for every step, where training shared one in a window.")
    ] = False,
    dataset: Annotated[str | None, typer.Option(help="Another data set.", show_default="as trained")] = None,
    split: Annotated[
        str, typer.Option(help="train, val, trainval, test or all; of a transfer run, test, val or train.")
    ] = "test",
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Chooses the episodes.")] = EVALUATION_SEED,
    one_by_one: Annotated[
        bool, typer.Option("--one-by-one", help="Judge each query by itself, as classify does; slower.")
    ] = False,
    checkpoint: CheckpointChoice = "best",
    net: Net = None,
    device: DeviceChoice = "auto",
    data: Data = None,
    as_json: AsJson = False,
    plugin: Plugin = None,
) -> None:
    """Measure accuracy: of a few-shot learner on new episodes, of a transfer run on the pictures of a part.

    On episodes it is the mean with its 95 % interval, and how it grows with every adaptation step.
    """
    from metastep.train import evaluate as evaluation

    with refusals():
        of_few_shot = {
            "ways": ways, "shots": shots, "queries": queries, "rotations": rotations, "steps": parsed_steps(steps),
            "exact_steps": exact_steps, "one_by_one": one_by_one,
        }  # fmt: skip
        result: OnEpisodes | OnPictures
        if is_transfer(path := Path(run).expanduser()):
            result = _on_pictures(path, of_few_shot, split, checkpoint, data, net, device, dataset)
        else:
            path = find_learner(run)
            asked = {**of_few_shot, "dataset": dataset, "split": split, "episodes": episodes, "seed": seed}
            result = _on_episodes(open_learner(path, checkpoint, net, device), asked, data)
        saved, failure = kept(path, result)  # first: the reader of the output may stop before its end
        typer.echo(evaluation.to_json(result)) if as_json else print_evaluation(result)
        if failure:
            typer.echo(f"metastep: not saved: {failure}", err=True)
        elif saved and not as_json:
            Console().print(Text(f"saved as {printable(saved)}", "dim"), soft_wrap=True)


def is_transfer(folder: Path) -> bool:
    from metastep.train.run import Run

    return Run.is_there(folder) and isinstance(Run.open(folder).config(Config), Transfer)


def _on_episodes(learner: Any, asked: dict[str, Any], data: Path | None) -> "OnEpisodes":
    from metastep.train.fewshot import evaluate as evaluating

    with progress_bar("evaluating") as progress:
        return evaluating.evaluate(learner, evaluating.Request(**asked), data, progress)


def _on_pictures(run: Path, of_few_shot: dict[str, Any], split: Any, checkpoint: Any, *how: Any) -> "OnPictures":
    from metastep.train.transfer import evaluate as evaluating

    if asked := [name for name, value in of_few_shot.items() if value]:
        raise MetastepError(f"--{asked[0].replace('_', '-')}: this is a transfer run, which has none. Leave it out.")
    for name, value, choices in (("split", split, PARTS), ("checkpoint", checkpoint, CHECKPOINTS)):
        if value not in choices:
            raise MetastepError(f"--{name} {value}: of a transfer run, choose one of {', '.join(choices)}.")
    data, net, device, dataset = how
    with progress_bar("reading pictures") as progress:
        taught = evaluating.load(run, checkpoint, data, net, progress, device, dataset)
        return evaluating.evaluate(taught, split)


def kept(path: Path, result: "Evaluation") -> tuple[Path | None, RunError | None]:
    """Where, if it is of a run; a folder that cannot be written takes nothing away from what was found"""
    from metastep.train.evaluate import save

    try:
        return (save(path, result) if path.is_dir() else None), None
    except RunError as error:
        return None, error


def print_evaluation(result: "OnEpisodes | OnPictures") -> None:
    console = Console()
    headline = Text(f"{result.accuracy:.2f} ± {result.interval:.2f} %", "bold green")
    judged_by = f"{how_many(len(result.accuracies), f'{result.split} {result.unit}')} of {printable(result.dataset)}"
    headline.append("  " + "; ".join(filter(None, (result.setting, judged_by, weights_of(result)))), "default")
    console.print(headline, soft_wrap=True)
    if result.not_finite:
        lost = f"{how_many(result.not_finite, result.unit)} left the finite numbers"
        console.print(Text(f"{lost}: what is not predicted counts as wrong.", "yellow"), soft_wrap=True)
    console.print(score_table(result))


def weights_of(result: "Evaluation") -> str:
    return f"{result.checkpoint} checkpoint" if result.checkpoint in ("best", "last") else result.checkpoint


def score_table(result: "OnEpisodes | OnPictures") -> Table:
    """Return a table of accuracies by adaptation step, or by class."""
    from metastep.train.evaluate import ClassScore, OnEpisodes, StepScore

    rows: list[tuple[Text, StepScore | ClassScore]]
    if isinstance(result, OnEpisodes):
        first, rows = "steps", [(Text(str(score.step)), score) for score in result.by_step]
    else:
        first, rows = "class", [(Text(f"{printable(each.name)} ({each.pictures})"), each) for each in result.classes]
    table = plain_table(first, "accuracy", "95 %", numbers=("steps", "accuracy", "95 %"))
    add_bars(table, result.ways)
    for name, score in rows:
        table.add_row(name, f"{score.accuracy:.2f} %", f"± {score.interval:.2f}", Bar(score.accuracy, result.ways))
    return table


def add_bars(table: Table, classes: int) -> None:
    """A column for them, with their scale as its heading"""
    table.add_column(f"0 to 100 %, {CHANCE} chance {100 / classes:.3g} %")


class Bar(NamedTuple):
    accuracy: float  # in percent
    classes: int  # to guess among

    def drawn(self, cells: int) -> Text:
        filled, chance = round(cells * self.accuracy / 100), round(cells / self.classes)
        drawn = [(FILLED, "green") if i < filled else (EMPTY, "dim") for i in range(cells)]
        drawn[min(chance, cells - 1)] = CHANCE, "bold"
        return Text.assemble(*drawn)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.drawn(min(CELLS, options.max_width))  # where there is less room, that is 100 %

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, CELLS)


# ---- compare


READING = (
    "cosine: 1 where it points the same way as the exact gradient; error: the difference, relative to its length.",
    "Multi-step learns by the exact gradient of its own inner loop: far from MAML's, it is another method, not a bad "
    "estimate. First order and finite differences estimate MAML's own.",
    "growth: how many times as long the sweep makes gradients. Above 100, clip the meta-gradient (outer.clip=0.5).",
)


def compare_methods(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run's folder, a learner's file, a learner that comes with metastep, or a preset."
        ),
    ],
    tasks: Annotated[int, typer.Option(min=1, max=10_000, help="How many, drawn as in training.")] = 8,
    picture: Annotated[
        Path | None, typer.Option(help="Draw cosine, error, time and memory against the window, as .svg or .png.")
    ] = None,
    checkpoint: CheckpointChoice = "best",
    net: Net = None,
    device: DeviceChoice = "auto",
    data: Data = None,
    plugin: Plugin = None,
) -> None:
    """Compare approximations with the exact meta-gradient: how near each is, and what it costs."""
    from metastep.report.comparison import compared
    from metastep.train.device import device_for
    from metastep.train.fewshot.evaluate import fitted
    from metastep.train.fewshot.learner import Learner
    from metastep.train.remembered import data_of

    with refusals():
        if picture:
            from metastep.report.comparison import draw, require_kind

            require_kind(picture)
        known = None if run in presets.known() else open_learner(find_learner(run), checkpoint, net, device)
        config = known.config if known else _preset(run)
        with progress_bar("reading") as progress:
            images = data_of(config.data, data, progress).classes(config.data.split)
        learner = known or Learner.fresh(fitted(config, images)).to(device_for(device))
        with progress_bar("comparing methods") as progress:
            found = compared(learner, images, tasks, progress)
        show(found, learner.config, tasks)
        if picture:
            draw(found.rows, found.windows, picture)


def _preset(name: str) -> FewShot:
    config = presets.preset(name)
    if not isinstance(config, FewShot):
        raise MetastepError(f"{name} is a preset of transfer; the methods of few-shot learning are compared.")
    return config


def _show_stability(found: "Suggestion", console: Console) -> None:
    headings = "inner step", "largest curvature", "longest stable window"
    table = open_table(*headings, numbers=headings)
    for row in found.curvatures:
        table.add_row(f"{row.step}", f"{row.curvature:.3g}", "" if row.window is None else f"{row.window}")
    console.print(table)
    for line in (found.sentence, *found.fails):
        console.print(Text(line, "" if line == found.sentence else "dim"))


def show(found: "Compared", config: FewShot, tasks: int) -> None:
    from metastep.core.windows import window_lengths

    console, inner = Console(), config.inner
    loop = f"{how_many(sum(window_lengths(config.steps)), 'inner step')} of {config.inner_name} at {inner.lr:g}"
    console.print(Text(f"{config.data.ways}-way {config.data.shots}-shot, {loop}, {how_many(tasks, 'task')} at once"))
    numbers = "cosine", "error", "growth", "gradients", "products", "seconds", "MiB"
    table = open_table("method", *numbers, numbers=numbers)
    for row in found.rows:
        costs = f"{row.gradients}", f"{row.products}", f"{row.seconds:.3g}", f"{row.peak_bytes / 2**20:,.0f}"
        growth = "" if row.growth is None else f"{row.growth:.3g}"
        table.add_row(row.method, f"{row.cosine:.3f}", f"{row.relative_error:.3g}", growth, *costs)
    console.print(table)
    _show_stability(found.suggestion, console)
    changes = "  ".join(f"{change:.2g}" for change in found.changes.mean(0).tolist())
    console.print(Text(f"How much the inner gradient changes in each step (small: it can be reused): {changes}"))
    if config.method_name in ("meta_sgd", "maml_pp"):
        console.print(Text("All of it at the rate that training began with: learned rates are left out.", "yellow"))
    for line in READING:
        console.print(Text(line, "dim"))
