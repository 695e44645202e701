"""From finished transfer runs to results/claims/<id>.json: `python -m benchmarks.transfer_claims RUN...`.

Runs are recognised by their configuration: a preset's, whatever the seed, the device and what is recorded. Runs of one
preset with different seeds make one claim together.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks import results
from metastep.bench.results import commit
from metastep.errors import MetastepError
from metastep.runs import Run, read_metrics
from metastep.transfer.config import MethodConfig, TransferConfig
from metastep.transfer.presets import METHODS, PRESETS, TARGETS

FOLDER = results.ROOT / "results" / "claims"
LEAST = 1.0  # points that a mean may lie below the paper's; its own deviation, where that is larger

# Accuracy and deviation as printed; rows are METHODS, columns are TARGETS.
TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "T2": ("sgd", (
        "67.69 0.22, 65.18 0.91, 42.15 0.75, 48.91 0.53, 36.93 0.68, 58.08 0.26",
        "70.96 0.61, 78.31 0.21, 65.05 1.19, 64.85 2.75, 63.08 0.88, 78.08 0.96",
        "70.97 0.38, 77.83 0.74, 64.89 0.98, 66.67 0.56, 61.93 3.32, 78.15 0.22",
    )),
    "T3": ("adam", (
        "67.69 0.22, 65.18 0.91, 42.15 0.75, 48.91 0.53, 36.93 0.68, 58.08 0.26",
        "69.35 0.09, 80.61 0.29, 66.26 0.51, 67.74 0.64, 62.05 2.15, 74.38 0.45",
        "70.12 0.23, 79.58 0.54, 66.51 1.08, 67.14 1.08, 65.43 0.23, 77.65 0.11",
    )),
}  # fmt: skip


@dataclass(frozen=True)
class Claim:
    id: str
    preset: str
    claim: str
    accuracy: float
    deviation: float


@dataclass(frozen=True)
class Finished:
    """One run, as far as a claim needs it"""

    config: TransferConfig
    test: float  # percent
    seconds: float
    iterations: int
    environment: dict[str, str]


def claims() -> Iterator[Claim]:
    for table, (optimizer, rows) in TABLES.items():
        cells = [(method, target) for method in METHODS for target in TARGETS]
        printed = [cell.split() for row in rows for cell in row.split(", ")]
        for number, ((method, target), (accuracy, deviation)) in enumerate(zip(cells, printed, strict=True), 1):
            preset = f"{target}-{optimizer}-{method}"
            yield Claim(f"{table}.{number}", preset, f"test accuracy of {preset}, %", float(accuracy), float(deviation))
    yield Claim("X5", "bird-sgd-first-order", "first order by the surrogate fails: test accuracy, %", 41.46, 2.34)
    yield Claim("X10", "bird-adam-t0", "without a virtual step on the transfer loss: test accuracy, %", 48.91, 0.83)


def finished(folder: Path) -> Finished:
    run = Run.open(folder)
    config, trained = run.config(TransferConfig), run.load()["trained"]
    if trained["epoch"] < config.epochs:
        raise MetastepError(f"{folder}: {trained['epoch']} of {config.epochs} epochs are done. Resume it first.")
    rows = read_metrics(run.metrics_path)
    environment = next(row for row in reversed(rows) if row["kind"] == "environment")
    kept = {key: str(environment[key]) for key in ("device", "python", "torch")}
    return Finished(config, 100 * trained["test"], trained["seconds"], int(rows[-1]["step"]), kept)


def comparable(config: TransferConfig) -> TransferConfig:
    """Without what makes no difference to what is claimed"""
    source = replace(config.source, weights=config.source.weights and Path(config.source.weights).name)
    defaults = TransferConfig(method=MethodConfig("scratch"))
    same = {name: getattr(defaults, name) for name in ("seed", "checkpoint_every", "gradient_difference", "threads")}
    if config.method.name == "scratch":
        source = defaults.source
    return replace(config, source=source, device="auto", precision="float32", **same)


def claim_files(runs: Sequence[Finished]) -> Iterator[dict[str, Any]]:
    """One for each claim that has runs"""
    for claim in claims():
        fitting = [run for run in runs if comparable(run.config) == comparable(PRESETS[claim.preset])]
        if fitting:
            yield content(claim, fitting)


def content(claim: Claim, runs: Sequence[Finished]) -> dict[str, Any]:
    seeds = sorted(run.config.seed for run in runs)
    if twice := [seed for seed, same in groupby(seeds) if len(list(same)) > 1]:
        raise MetastepError(f"{claim.preset}: two runs have seed {twice[0]}. Leave one out.")
    value = statistics.fmean(run.test for run in runs)
    spread = statistics.stdev(run.test for run in runs) if len(runs) > 1 else None
    config, environment = runs[0].config, runs[0].environment
    return {
        "id": claim.id,
        "claim": claim.claim,
        "paper": f"{claim.accuracy}±{claim.deviation}",
        "value": round(value, 2),
        "interval": None if spread is None else round(spread, 2),
        "verdict": verdict(value, claim),
        "seeds": seeds,
        "iterations": runs[0].iterations,
        "episodes": None,
        "seconds": [round(run.seconds) for run in runs],
        "device": environment["device"],
        "versions": {"python": environment["python"], "torch": environment["torch"]},
        "data": data_note(config),
        "command": f"metastep transfer run --preset {claim.preset} --precision {config.precision} "
        "--seed SEED --data DATA",
        "commit": commit(),
        "note": f"Test accuracy at the first best validation; interval is the deviation over seeds, the paper has 3. "
        f"Precision {config.precision}.",
    }


def verdict(value: float, claim: Claim) -> str:
    margin = max(LEAST, claim.deviation)
    return "short" if value < claim.accuracy - margin else "better" if value > claim.accuracy + margin else "reproduced"


def data_note(config: TransferConfig) -> str:
    source = "" if config.method.name == "scratch" else f"; source {config.source.net}, {config.source.weights}"
    return f"{config.data.name} at {config.data.size}×{config.data.size}, {config.data.augment}{source}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    try:
        found = list(claim_files([finished(folder) for folder in options.runs]))
    except MetastepError as error:
        sys.exit(str(error))
    if not found:
        sys.exit("none of these runs has the configuration of a preset that something is claimed about")
    options.out.mkdir(parents=True, exist_ok=True)
    for each in found:
        path = options.out / f"{each['id']}.json"
        path.write_text(json.dumps(each, indent=1, ensure_ascii=False) + "\n")
        print(f"{path}: {each['value']} against {each['paper']}, {each['verdict']}")


if __name__ == "__main__":
    main()
