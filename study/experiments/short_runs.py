"""Train four methods for a short time on a CPU, and test each on 200 episodes.

5-way 1-shot by the glyphs presets (a small Conv4, 8 tasks), on glyphs and, with --data, on Omniglot. Their inner rates
were chosen on validation scripts, for some methods with more care than for others: this shows that all of them learn,
not which is best. The file is written after every run: the same command continues with the next.
"""

import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from metastep import Learner
from metastep.cli.common import unless_stopped
from metastep.train.config import FewShot
from metastep.train.fewshot.evaluate import Request, evaluate
from metastep.train.loop import train
from metastep.train.presets import few_shot
from study import results
from study.experiments import arguments

EPISODES = 200
METHODS = ("multistep4", "maml", "fomaml", "reptile")


def configuration(method: str, dataset: str, iterations: int) -> FewShot:
    config = few_shot()[f"glyphs-5w1s-{method}"]
    data = replace(config.data, name=dataset, rotations="none" if dataset == "glyphs" else "per_episode")
    return replace(config, data=data, iterations=iterations)


def setting_of(dataset: str) -> str:
    return f"{dataset}-5w1s"


def run(method: str, dataset: str, iterations: int, data: Path | None) -> dict[str, Any]:
    config = configuration(method, dataset, iterations)
    with tempfile.TemporaryDirectory() as folder:
        with unless_stopped():
            trained = train(config, Path(folder) / "run", data)
        learner = Learner.load(Path(folder) / "run", "last")
    found = evaluate(learner, Request(episodes=EPISODES), data)
    return {
        "setting": setting_of(dataset), "implementation": "metastep", "method": method, "steps": config.steps,
        "window": config.window or 1, "tasks": config.tasks, "chunk": config.chunk_size,
        "precision": config.precision, "iterations": trained.iterations, "seconds": round(trained.seconds, 1),
        "episodes": EPISODES, "accuracy": found.accuracy, "interval": found.interval, "note": "",
    }  # fmt: skip


def main() -> None:
    parser = arguments.parser("short_runs", __doc__)
    parser.add_argument("--iterations", type=int, default=200)
    arguments.add_data(parser)
    options = parser.parse_args()
    datasets = ["glyphs", "omniglot"] if options.data else ["glyphs"]
    command = arguments.command("short_runs", options)
    torch.set_num_threads(configuration(METHODS[0], "glyphs", 1).threads)  # a file tells it, and runs set it anyway
    rows = results.kept("short-runs", command)
    done = [(row["setting"], row["method"]) for row in rows]
    left = [each for each in product(datasets, METHODS) if (setting_of(each[0]), each[1]) not in done]
    found = (run(method, dataset, options.iterations, options.data) for dataset, method in left)
    results.write_each("short-runs", command, rows, found)
