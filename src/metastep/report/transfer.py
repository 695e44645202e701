"""The page about transfer runs: curves, what was reached, and what the meta-networks have learned."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from metastep.data.errors import printable
from metastep.data.progress import Progress, silent
from metastep.report import figures
from metastep.report.page import collected, rendered
from metastep.report.reported import Point, Reported
from metastep.report.weights import weight_figures
from metastep.train.config import Transfer
from metastep.train.io import replace_file
from metastep.train.metrics import read_metrics
from metastep.train.run import Run
from metastep.train.transfer.train import SOURCE


@dataclass(frozen=True)
class TransferReport(Reported):
    config: Transfer
    source: "TransferReport | None" = None
    """The run that trains its source, as long as it has no epoch of its own to show"""

    @property
    def options(self) -> dict[str, Any]:
        """Of its method, with its virtual steps"""
        return {**super().options, **({"steps": self.config.steps} if self.config.learns_weights else {})}

    @property
    def waits(self) -> str:
        """For what, where its source is trained first; else empty"""
        if self.epochs or not self.config.trains_source:
            return ""
        source = f"its source, {self.config.source.net} on {printable(self.config.source.dataset or '')}"
        if self.source is None:
            return f"{source}, is trained first, and has not begun"
        done, all_of_them = self.source.epochs, self.source.config.epochs
        if done < all_of_them:
            return f"{source}, is trained first: {done} of {all_of_them} epochs are done"
        return f"{source}, is trained, and the first epoch of the target is not over"

    @property
    def has_networks(self) -> bool:
        return self.config.method_name == "transfer"

    @property
    def epochs(self) -> int:
        return max((int(row["epoch"]) for row in self.rows if "epoch" in row), default=0)

    @property
    def best(self) -> Point | None:
        """(epoch, validation, test), accuracies in percent, of the first epoch with the best validation"""
        points = self.curve("validation", "epoch", "validation_accuracy", "test_accuracy")
        best = max(points, key=lambda point: point[1], default=None)  # max keeps the first of equals
        return best and (best[0], 100 * best[1], 100 * best[2])

    @property
    def seconds(self) -> float | None:
        points = self.curve("train", "seconds")
        return points[-1][0] if points else None

    @property
    def milliseconds(self) -> float | None:
        """Of an iteration"""
        points = self.curve("train", "step", "seconds")
        return 1000 * points[-1][1] / points[-1][0] if points and points[-1][0] else None

    @property
    def task(self) -> str:
        few = f", {self.config.data.per_class} of each class" if self.config.data.per_class else ""
        return f"{printable(self.config.data.name)}{few}"

    @property
    def weights(self) -> list[tuple[str, str, Markup]]:
        return weight_figures(self.rows)


FIGURES = (
    ("Training loss", "On labels alone, mean over an epoch.", "train", ("epoch", "cross_entropy"), "loss", 1),
    ("Transfer loss", "L_tfr, before β, mean over an epoch.", "train", ("epoch", "transfer_loss"), "transfer loss", 1),
    ("Validation accuracy", "By running statistics, after each epoch.", "validation",
     ("epoch", "validation_accuracy"), "accuracy, %", 100),
    ("Test accuracy", "The same; what is reported is where validation was best first.", "validation",
     ("epoch", "test_accuracy"), "accuracy, %", 100),
    ("Change of the transfer gradient", "‖∇L(φ₁) − ∇L(φ₀)‖ / ‖∇L(φ₁)‖ in the first virtual step. Small: a gradient "
     "can be shared.", "gradient_difference", ("epoch", "gradient_difference"), "relative change", 1),
)  # fmt: skip


def write_transfer_report(folders: Sequence[Path], out: Path, progress: Progress = silent) -> None:
    """A page about the runs in `folders`, made of what they wrote down"""
    runs = collected(folders, collect, progress)
    replace_file(out, render(runs).encode(errors="backslashreplace"))


def collect(folder: Path, name: str, colour: str) -> TransferReport:
    run = Run.open(folder)
    rows = read_metrics(run.metrics_path) if run.metrics_path.exists() else []
    report = TransferReport(name, colour, run.config(Transfer).shared, rows)
    if report.waits and Run.is_there(folder / SOURCE):  # it has no curves, so that theirs may have its colour
        return replace(report, source=collect(folder / SOURCE, f"{name}/{SOURCE}", colour))
    return report


def render(runs: Sequence[TransferReport]) -> str:
    rows = [each for run in runs for each in (run, run.source) if each]
    shown = [run.source or run for run in runs]  # whose curves there are
    drawn = [
        (title, note, figures.curves(shown, kind, keys, "epoch", y, scale))
        for title, note, kind, keys, y, scale in FIGURES
    ]
    return rendered("transfer.html", runs, drawn, rows=rows, shown=shown)
