"""Train the digits transfer for several seeds: its usual ways, fixed weights, first order and fine-tuning.

Every seed has a source net of its own. Every way has the best of the same few rates, see the presets. The file is
written after every run: the same command continues with the seed that was interrupted.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from metastep.cli.demo import METHODS, configured, finished
from metastep.train import presets
from metastep.train.config import Transfer
from metastep.train.transfer.building import source_run
from study import results
from study.experiments import arguments

OTHERS = {
    "fixed weights": "digits-sgd-fixed-weights",
    "first order": "digits-sgd-first-order",
    "fine-tuning of the source": "digits-sgd-fine-tuning",
}
WAYS = {**METHODS, **OTHERS}


def run(seed: int, folder: Path, epochs: int | None) -> Iterator[dict[str, Any]]:
    first = source_run(replace(presets.transfer()[METHODS["scratch"]], seed=seed))
    first = replace(first, epochs=epochs or first.epochs)
    yield row("source", seed, first, folder / "source")
    for name, preset in WAYS.items():
        yield row(name, seed, configured(presets.transfer()[preset], folder, epochs, seed), folder / name)


def row(name: str, seed: int, config: Transfer, folder: Path) -> dict[str, Any]:
    trained = finished(folder, config, config.method_name)
    assert trained.best is not None
    assert trained.test is not None
    few = f"-{config.data.per_class}-per-class" if config.data.per_class else ""
    return {
        "setting": f"{config.data.name}{few}",
        "implementation": "metastep", "method": name, "steps": config.steps if config.learns_weights else None,
        "window": config.window if config.learns_weights else None, "precision": config.precision, "seed": seed,
        "products": config.products, "epochs": config.epochs, "inner_rate": config.inner.lr,
        "validation": round(100 * trained.best, 2), "accuracy": round(100 * trained.test, 2),
        "seconds": round(trained.seconds, 1), "note": "",
    }  # fmt: skip


def of_whole_seeds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A seed that was stopped on the way begins anew, since its source net is gone"""
    number = Counter(row["seed"] for row in rows)
    return [row for row in rows if number[row["seed"]] == 1 + len(WAYS)]


def main() -> None:
    parser = arguments.parser("transfer_digits", __doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="of each run, to try it out")
    options = parser.parse_args()
    command = arguments.command("transfer_digits", options)
    torch.set_num_threads(presets.transfer()[METHODS["scratch"]].threads)  # a file tells it, and runs set it anyway
    rows = of_whole_seeds(results.kept("transfer-digits", command))
    for seed in sorted(set(range(options.seeds)) - {row["seed"] for row in rows}):
        with tempfile.TemporaryDirectory() as folder:
            results.write_each("transfer-digits", command, rows, run(seed, Path(folder), options.epochs))
