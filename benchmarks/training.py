"""How few-shot runs were trained, thinned out to be kept: python -m benchmarks.training runs/reproduce/omniglot-*

Writes results/runs/NAME.json for each finished run of `metastep reproduce`, and `python -m benchmarks.claim_tables`
draws them.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks import results
from metastep.bench.plot import STYLE
from metastep.reproduce.outcomes import read_made
from metastep.runs import Run, read_metrics
from metastep.runs.files import replace_file

FOLDER = results.ROOT / "results" / "runs"
POINTS = 120  # of a curve
Point = tuple[int, float, float]  # iteration, accuracy in percent, loss; both on the queries of training


def kept(folder: Path) -> dict[str, Any]:
    made = read_made(folder)
    rows = [row for row in read_metrics(Run(folder).metrics_path) if row["kind"] == "train"]
    return {
        "run": folder.name,
        "command": f"metastep reproduce, and python -m benchmarks.training {folder.name}",
        "commit": made.commit,
        "device": made.device,
        "versions": {"python": made.python, "torch": made.torch},
        "data": made.data,
        "curve": list(thinned(rows)),
    }


def thinned(rows: Sequence[dict[str, Any]]) -> Iterator[Point]:
    """Means over parts of equal length"""
    length = -(-len(rows) // POINTS)
    for first in range(0, len(rows), length):
        part = rows[first : first + length]
        accuracy, loss = (fmean(row[name] for row in part) for name in ("accuracy", "loss"))
        yield part[-1]["step"], round(100 * accuracy, 3), round(loss, 4)


def settings(folder: Path = FOLDER) -> dict[str, dict[str, list[Point]]]:
    """Setting -> method -> curve, of all few-shot runs that are kept"""
    found: dict[str, dict[str, list[Point]]] = {}
    for path in sorted(folder.glob("*.json")):
        data, setting, method, *_ = path.stem.split("-")
        found.setdefault(f"{data}-{setting}", {})[method] = json.loads(path.read_text())["curve"]
    return found


def draw(panels: dict[str, dict[str, list[Point]]], picture: Path) -> None:
    """What is still wrong, in percent: on two logarithms, the long way at chance and the last tenth can both be seen"""
    with mpl.rc_context(STYLE):
        figure = Figure((4 * len(panels), 3), layout="constrained")
        for axes, (setting, curves) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
        ):
            for method, curve in curves.items():
                steps, accuracies, _ = zip(*curve, strict=True)
                axes.loglog(steps, [100 - accuracy for accuracy in accuracies], label=method, linewidth=1)
            axes.set(title=setting, xlabel="iteration", ylabel="wrong, % of the queries in training")
            axes.legend(fontsize=6, frameon=False)
        figure.savefig(picture, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished runs")
    for folder in parser.parse_args().runs:
        path = FOLDER / f"{folder.name}.json"
        replace_file(path, (json.dumps(kept(folder)) + "\n").encode())
        print(path)


if __name__ == "__main__":
    main()
