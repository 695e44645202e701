"""Four methods after a short run on a CPU: 5-way 1-shot on glyphs and, with --data, on Omniglot; 200 test episodes.

The glyphs presets (a small Conv4, 8 tasks), also for Omniglot. Their inner rates were chosen on validation scripts,
for some methods with more care than for others: this shows that all of them learn, not which is best.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import results
from metastep import Learner
from metastep.fewshot.config import TrainConfig
from metastep.fewshot.evaluate import Request, evaluate
from metastep.fewshot.presets import PRESETS
from metastep.fewshot.train import train

EPISODES = 200
METHODS = ("multistep4", "maml", "fomaml", "reptile")


def configuration(method: str, dataset: str, iterations: int) -> TrainConfig:
    config = PRESETS[f"glyphs-5w1s-{method}"]
    data = replace(config.data, name=dataset, rotations="none" if dataset == "glyphs" else "per_episode")
    return replace(config, data=data, outer=replace(config.outer, iterations=iterations))


def run(method: str, dataset: str, iterations: int, data: Path | None) -> dict[str, Any]:
    config = configuration(method, dataset, iterations)
    with tempfile.TemporaryDirectory() as folder:
        trained = train(config, Path(folder) / "run", data)
        learner = Learner.load(Path(folder) / "run", "last")
    found = evaluate(learner, Request(episodes=EPISODES), data, "last")
    return {
        "setting": f"{dataset}-5w1s", "implementation": "metastep", "method": method, "steps": config.inner.steps,
        "window": config.method.window or 1, "tasks": config.outer.tasks, "chunk": config.chunk_size,
        "precision": config.precision, "iterations": iterations, "seconds": round(trained.seconds, 1),
        "episodes": EPISODES, "accuracy": found.accuracy, "interval": found.interval, "note": "",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--data", type=Path, help="the data directory that has Omniglot")
    options = parser.parse_args()
    datasets = ["glyphs", "omniglot"] if options.data else ["glyphs"]
    rows = [run(m, d, options.iterations, options.data) for d in datasets for m in METHODS]
    command = f"python -m benchmarks.short_runs --iterations {options.iterations}" + " --data DATA" * bool(options.data)
    print(results.write("short-runs", command, rows))


if __name__ == "__main__":
    main()
