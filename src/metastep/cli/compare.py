"""`metastep compare`: how far each approximation is from the exact meta-gradient, for a learner and its inner loop."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from metastep.cli.common import Data, Plugin, progress_bar, refusals
from metastep.cli.use import CheckpointChoice, DeviceChoice, Net, open_learner
from metastep.errors import MetastepError, how_many
from metastep.train.config import FewShot

if TYPE_CHECKING:
    from metastep.train.fewshot.comparing import Compared

READING = (
    "cosine: 1 where it points the same way as the exact gradient; error: how far it is from it, beside its length.",
    "Multi-step learns by the exact gradient of its own inner loop: far from MAML's, it is another method, not a bad "
    "estimate. First order and finite differences estimate MAML's own.",
)


def compare_methods(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run's folder, a learner's file, a learner that comes with metastep, or a preset."
        ),
    ],
    tasks: Annotated[int, typer.Option(min=1, max=10_000, help="How many, drawn as in training.")] = 8,
    checkpoint: CheckpointChoice = "best",
    net: Net = None,
    device: DeviceChoice = "auto",
    data: Data = None,
    plugin: Plugin = None,
) -> None:
    """Compare approximations with the exact meta-gradient: how near each is, and what it costs."""
    from metastep.train import presets
    from metastep.train.device import device_for
    from metastep.train.fewshot.comparing import compared
    from metastep.train.fewshot.learner import Learner
    from metastep.train.fewshot.sampling import fitted, read_split
    from metastep.train.fewshot.shipped import find_learner

    with refusals():
        known = None if run in presets.known() else open_learner(find_learner(run), checkpoint, net, device)
        config = known.config if known else _preset(run)
        with progress_bar("reading") as progress:
            images = read_split(config.data, data, config.data.split, progress)
        learner = known or Learner.fresh(fitted(config, images)).to(device_for(device))
        with progress_bar("comparing methods") as progress:
            found = compared(learner, images, tasks, progress)
        show(found, learner.config, tasks)


def _preset(name: str) -> FewShot:
    from metastep.train import presets

    config = presets.preset(name)
    if not isinstance(config, FewShot):
        raise MetastepError(f"{name} is a preset of transfer; the methods of few-shot learning are compared.")
    return config


def show(found: "Compared", config: FewShot, tasks: int) -> None:
    from metastep.core.windows import window_lengths

    console, inner = Console(), config.inner
    loop = f"{how_many(sum(window_lengths(config.steps)), 'inner step')} of {config.inner_name} at {inner.lr:g}"
    console.print(Text(f"{config.data.ways}-way {config.data.shots}-shot, {loop}, {how_many(tasks, 'task')} at once"))
    table = Table(header_style="bold", border_style="dim")
    for heading in ("method", "cosine", "error", "gradients", "products", "seconds", "MiB"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for row in found.rows:
        costs = f"{row.gradients}", f"{row.products}", f"{row.seconds:.3g}", f"{row.peak_bytes / 2**20:,.0f}"
        table.add_row(row.method, f"{row.cosine:.3f}", f"{row.relative_error:.3g}", *costs)
    console.print(table)
    changes = "  ".join(f"{change:.2g}" for change in found.changes.mean(0).tolist())
    console.print(Text(f"How much the inner gradient changes in each step (small: it can be reused): {changes}"))
    if config.method_name in ("meta_sgd", "maml_pp"):
        console.print(Text("All of it at the rate that training began with: learned rates are left out.", "yellow"))
    for line in READING:
        console.print(Text(line, "dim"))
