"""A page about runs of either kind."""

from collections.abc import Sequence
from pathlib import Path

from metastep.data.progress import Progress, silent
from metastep.errors import MetastepError
from metastep.report import fewshot
from metastep.report.collect import collect
from metastep.report.page import collected
from metastep.report.transfer import write_transfer_report
from metastep.train.config import Transfer
from metastep.train.io import replace_file
from metastep.train.run import Run


def write_report(
    folders: Sequence[Path],
    out: Path,
    episodes: int = 2,
    net: str | None = None,
    data: Path | None = None,
    progress: Progress = silent,
) -> list[str]:
    """A page about the runs in `folders`, all of one kind; returns why something is missing from it, where it is.

    Of few-shot runs, `episodes` are shown of each; `net` and `data` are as in an evaluation.
    """
    if not folders:
        raise MetastepError("a report needs at least one run. Give the folder of a run.")
    transfers = [issubclass(Run.open(folder).job, Transfer) for folder in folders]
    if all(transfers):
        write_transfer_report(folders, out, progress)
        return []
    if any(transfers):
        raise MetastepError("these are runs of few-shot learning and of transfer: give those of one kind.")
    runs = collected(folders, lambda folder, name, colour: collect(folder, name, colour, episodes, net, data), progress)
    replace_file(out, fewshot.render(runs).encode(errors="backslashreplace"))
    return [f"{run.name}: {run.note}" for run in runs if run.note]
