"""`metastep transfer` for several seeds, and three more ways: fixed weights, first order, fine-tuning of the source.

Every seed has a source net of its own. Every way has the best of the same few rates, see the presets.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import results
from metastep.transfer.comparison import METHODS, configured, finished
from metastep.transfer.config import TransferConfig
from metastep.transfer.presets import PRESETS
from metastep.transfer.source import source_run

OTHERS = {
    "fixed weights": "digits-sgd-fixed-weights",
    "first order": "digits-sgd-first-order",
    "fine-tuning of the source": "digits-sgd-fine-tuning",
}


def run(seed: int, folder: Path, epochs: int | None) -> list[dict[str, Any]]:
    first = source_run(replace(PRESETS[METHODS["scratch"]], seed=seed))
    first = replace(first, epochs=epochs or first.epochs)
    rows = [row("source", seed, first, folder / "source")]
    for name, preset in {**METHODS, **OTHERS}.items():
        rows.append(row(name, seed, configured(PRESETS[preset], folder, epochs, seed), folder / name))
    return rows


def row(name: str, seed: int, config: TransferConfig, folder: Path) -> dict[str, Any]:
    trained = finished(folder, config)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="of each run, to try it out")
    options = parser.parse_args()
    rows = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            rows += run(seed, Path(folder), options.epochs)
    print(results.write("transfer-digits", f"python -m benchmarks.transfer_digits --seeds {options.seeds}", rows))


if __name__ == "__main__":
    main()
