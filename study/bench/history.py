"""Files of pairs that were measured at one commit after another: a JSON object in each line, the latest last."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from metastep.errors import MetastepError, how_many
from metastep.train.io import read_file, replace_file
from study.bench.pairs import Estimated
from study.bench.results import Row, case_of


def entries(path: Path) -> list[Row]:
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in read_file(path).splitlines()]
    except ValueError as error:
        raise MetastepError(
            f"{path} is no history ({error}). Choose another file, or remove the broken line."
        ) from error


def append(path: Path, entry: Row) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row) + "\n" for row in (*entries(path), entry)]
    replace_file(path, "".join(lines).encode())


def compared(row: Row) -> tuple[Any, ...]:
    """Return what two rows of different commits have in common if they can be compared."""
    return case_of(row), row["other"], row["device"]


def table(rows: Sequence[Row], only: Iterable[Row] | None = None) -> Table:
    """Commit after commit for each case; only: for those of these rows."""
    shown = Table(
        "case", "commit", "date", title="ours and other's, interleaved", header_style="bold", border_style="dim"
    )
    for heading in ("ms", "other's ms", "ours / other's", "pairs"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for key in dict.fromkeys(compared(row) for row in (rows if only is None else only)):
        case, other, device = key
        for i, row in enumerate(row for row in rows if compared(row) == key):
            shown.add_row("" if i else f"{case.label} / {other}\n{how_many(case.tasks, 'task')}, {device}", *cells(row))
        shown.add_section()
    return shown


def cells(row: Row) -> Iterable[str]:
    estimated = (Estimated(*row[name]).text for name in ("ms", "other_ms", "ratio"))
    return row["commit"][:10], row["date"], *estimated, str(row["pairs"])
