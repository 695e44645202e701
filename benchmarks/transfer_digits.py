"""`metastep transfer` for several seeds, and two more ways: scratch, baseline, Multi-step, fixed weights, fine-tuning.

Every seed has a source net of its own. Choices were made on the validation part, with seed 0.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import results
from metastep.transfer.comparison import METHODS, configured, finished
from metastep.transfer.config import TransferConfig
from metastep.transfer.presets import ABLATIONS, PRESETS, with_method
from metastep.transfer.source import source_run

OTHERS = {"fixed weights": "fixed-weights", "fine-tuning of the source": "fine-tuning"}


def configurations() -> dict[str, TransferConfig]:
    found = {name: PRESETS[preset] for name, preset in METHODS.items()}
    base = found["scratch"]
    return found | {name: with_method(base, ABLATIONS[ablation]) for name, ablation in OTHERS.items()}


def run(seed: int, folder: Path, epochs: int | None) -> list[dict[str, Any]]:
    first = source_run(replace(PRESETS[METHODS["scratch"]], seed=seed))
    first = replace(first, epochs=epochs or first.epochs)
    rows = [row("source", seed, first, folder / "source")]
    for name, config in configurations().items():
        rows.append(row(name, seed, configured(config, folder, epochs, seed), folder / name))
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
        "products": config.products, "epochs": config.epochs, "validation": round(100 * trained.best, 2),
        "accuracy": round(100 * trained.test, 2), "seconds": round(trained.seconds, 1), "note": "",
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
