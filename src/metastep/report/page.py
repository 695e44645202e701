"""One HTML page about one run or several, of either job: it needs no other file, no script and no network."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor

from metastep import __version__
from metastep.data.errors import Progress, printable, silent
from metastep.errors import MetastepError
from metastep.report.collect import collect, named
from metastep.report.figures import drawings, learned
from metastep.report.reported import UNSET, Asked, Reported
from metastep.report.sheet import shown
from metastep.train.io import replace_file


def write_report(
    folders: Sequence[Path],
    out: Path,
    episodes: int = 2,
    net: str | None = None,
    data: Path | None = None,
    progress: Progress = silent,
) -> list[str]:
    """Write a page about the runs in `folders`.

    Args:
        folders: Folders of runs.
        out: The file to write.
        episodes: Episodes to show of each few-shot run; with 0, no predictions are shown.
        net: A net of the user's own, named again. It is not imported otherwise.
        data: The data directory.
        progress: Called with the runs that are read, and their number.

    Returns:
        What is missing from the page, and why.
    """
    if not folders:
        raise MetastepError("a report needs at least one run. Give the folder of a run.")
    if out.suffix.lower() not in (".html", ".htm"):
        raise MetastepError(f"{printable(out)}: a report is an HTML page. Name a file that ends in .html.")
    runs: list[Reported] = []
    for done, (folder, name, colour) in enumerate(named(folders), 1):
        runs += collect(folder, name, colour, episodes, net, data)
        progress(done, len(folders))
    replace_file(out, render(runs).encode(errors="backslashreplace"))
    return [f"{run.name}: {run.note}" for run in runs if run.note]


def render(runs: Sequence[Reported]) -> str:
    """Return the page."""
    environment = Environment(
        loader=PackageLoader("metastep.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"picture": picture, "number": number, "duration": duration, "printable": printable}
    return environment.get_template("page.html").render(
        runs=runs,
        rows=[(run, each) for run in runs for each in sorted(run.evaluations, key=_order)],
        figures=drawings(runs),
        learned=[(run, learned(run.rows)) for run in runs],
        facts=facts(runs),
        settings=settings(runs),
        version=__version__,
    )


def _order(evaluation: object) -> tuple[str, ...]:
    return tuple(str(getattr(evaluation, name, "")) for name in ("split", "ways", "shots", "one_by_one", "checkpoint"))


def facts(runs: Sequence[Reported]) -> list[tuple[str, str, list[str]]]:
    """Return what training costs: (title, note, its value of every run), of all that is known of any."""
    each = "of each task in an iteration"
    table = [
        ("Time of training", "", [duration(run.seconds) for run in runs]),
        ("Time of an iteration", "as measured in training", [duration(run.seconds_per_iteration) for run in runs]),
        ("Peak memory", "of one task's meta-gradient", [_mebibytes(run.asked) for run in runs]),
        ("Gradients", each, [number(run.asked.gradients if run.asked else None, 0) for run in runs]),
        ("Second-order products", each, [number(run.asked.products if run.asked else None, 0) for run in runs]),
        ("Batch", "tasks, or pictures of a transfer run", [number(run.batch, 0) for run in runs]),
        ("Parameters", "that are trained", [number(run.asked.parameters if run.asked else None, 0) for run in runs]),
        ("Path", "how it was computed", [run.said("engine", "path") for run in runs]),
        ("Device", "", [run.said("environment", "device") for run in runs]),
    ]
    return [row for row in table if set(row[2]) != {UNSET}]


def duration(seconds: float | None) -> str:
    """Return a time in the unit that people use for it."""
    if seconds is None:
        return UNSET
    units = (1, "ms", 1000), (120, "s", 1), (7200, "min", 1 / 60)
    unit, factor = next(((unit, factor) for most, unit, factor in units if seconds < most), ("h", 1 / 3600))
    return f"{number(factor * seconds, 1)} {unit}"


def _mebibytes(asked: Asked | None) -> str:
    return f"{number(asked.peak_bytes / 2**20, 1)} MiB" if asked and asked.peak_bytes else UNSET


def settings(runs: Sequence[Reported]) -> list[tuple[str, list[str], bool]]:
    """Return (name, its value in every run, whether they differ), of all that is set anywhere."""
    columns = [run.settings for run in runs]
    names = dict.fromkeys(name for column in columns for name in column)  # options of a method are its own
    table = [(name, [column.get(name, UNSET) for column in columns]) for name in names]
    return [(name, values, len(set(values)) > 1) for name, values in table if set(values) != {UNSET}]


def picture(image: Tensor) -> str:
    """Return bytes (channels, height, width) as the address of a picture that is in the address itself."""
    drawn, file = shown(image), io.BytesIO()
    kind = "png" if len(image) == 1 else "jpeg"
    drawn.save(file, kind, quality=88)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def number(value: float | None, digits: int = 2) -> str:
    """Return a number as people read it; a dash where there is none."""
    return UNSET if value is None or value != value else f"{value:,.{digits}f}".replace("-", "−")
