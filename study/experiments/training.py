"""Keep how finished runs were trained, in results/runs.

    python -m study run training runs/reproduce/*

Of each few-shot run of `python -m study claims` it keeps a thinned curve, results/runs/NAME.json, which
`python -m study tables --figures` draws; of transfer runs all that they measured after their epochs,
results/runs/NAME.jsonl, to five digits.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from metastep.train.io import replace_file
from metastep.train.presets import few_shot
from metastep.train.record import read_metrics
from metastep.train.run import Run
from study import results
from study.claims import transfer_runs
from study.claims.kinds import kind_of
from study.claims.outcomes import read_made
from study.experiments import arguments
from study.tables import curves

FOLDER = results.ROOT / "results" / "runs"
POINTS = 120  # of a curve
Point = tuple[int, float, float]  # iteration, accuracy in percent, loss; both on the queries of training


def kept(folder: Path) -> dict[str, Any]:
    made = read_made(folder)
    rows = [row for row in read_metrics(Run(folder).metrics_path) if row["kind"] == "train"]
    command = f"python -m study claims, and python -m study run training {folder.name}"
    about = results.provenance_of_run(command, made)
    return {"run": folder.name, **about, "data": made.data, "curve": list(thinned(rows))}


def thinned(rows: Sequence[dict[str, Any]]) -> Iterator[Point]:
    """Means over parts of equal length"""
    length = -(-len(rows) // POINTS)
    for first in range(0, len(rows), length):
        part = rows[first : first + length]
        accuracy, loss = (fmean(row[name] for row in part) for name in ("accuracy", "loss"))
        yield part[-1]["step"], round(100 * accuracy, 3), round(loss, 4)


def settings(folder: Path = FOLDER) -> dict[str, dict[str, dict[str, list[Point]]]]:
    """Data -> setting -> method -> curve, of all few-shot runs that are kept, in the order of the presets"""
    paths = sorted(folder.glob("*.json"), reverse=True)  # so that of several seeds the first one stays
    kept = {path.stem.rpartition("-")[0]: path for path in paths}
    found: dict[str, dict[str, dict[str, list[Point]]]] = {}
    for preset in (name for name in few_shot() if name in kept):
        data, setting, method = preset.split("-")
        of = found.setdefault(data, {}).setdefault(f"{data}-{setting}", {})
        of[method] = json.loads(kept[preset].read_text())["curve"]
    return found


def draw(kept: dict[str, dict[str, list[Point]]], picture: Path) -> None:
    """What is still wrong: on two logarithms, the long way at chance and the last tenth can both be seen"""
    panels = {
        setting: {method: [(step, 100 - accuracy) for step, accuracy, _ in curve] for method, curve in of.items()}
        for setting, of in kept.items()
    }
    curves.draw(panels, min(2, len(panels)), "wrong, % of queries in training", picture, "log")


def main() -> None:
    parser = arguments.parser("training", __doc__)
    arguments.add_runs(parser)
    for folder in parser.parse_args().runs:
        path, content = of_transfer(folder) if is_transfer(folder) else of_few_shot(folder)
        replace_file(path, content.encode())
        print(path)


def is_transfer(folder: Path) -> bool:
    return kind_of(folder.name.rpartition("-")[0]) is transfer_runs


def of_few_shot(folder: Path) -> tuple[Path, str]:
    return FOLDER / f"{folder.name}.json", json.dumps(kept(folder)) + "\n"


def of_transfer(folder: Path) -> tuple[Path, str]:
    rows = map(json.dumps, map(rounded, read_metrics(Run(folder).metrics_path)))
    return FOLDER / f"{folder.name}.jsonl", "".join(f"{row}\n" for row in rows)


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in row.items()}
