"""Judge the shipped learners of photos on CUB and CIFAR-FS, and learners that train on CIFAR-FS for a short time.

Each on test episodes of 15 queries for each class. The shipped ones were trained on miniImageNet at 84x84; other
pictures are made as large for them. The short runs take CIFAR-FS at 32x32, by the presets of Multi-step(4).
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from metastep import Learner
from metastep.train.fewshot.evaluate import Request, evaluate
from metastep.train.loop import train
from metastep.train.presets import few_shot
from study import results
from study.experiments import arguments

LEARNERS = ("miniimagenet-5w1s", "miniimagenet-5w5s")
DATA = ("cub", "cifar_fs")


def judged(learner: Learner, dataset: str, data: Path, about: str, episodes: int) -> dict[str, Any]:
    found = evaluate(learner, Request(dataset=dataset, episodes=episodes), data)
    return {
        "learner": about, "trained_on": learner.config.data.name, "iterations": learner.config.iterations,
        "dataset": dataset, "shots": learner.config.data.shots, "side": learner.config.net.size,
        "filters": len(next(learner.net.parameters())), "episodes": episodes, "accuracy": found.accuracy,
        "interval": found.interval, "note": "",
    }  # fmt: skip


def short(shots: int, iterations: int, data: Path) -> Learner:
    """Train on CIFAR-FS, and return the learner with the best validation."""
    config = few_shot()[f"miniimagenet-5w{shots}s-multistep4"]
    validation = replace(config.validation, every=max(1, iterations // 4), episodes=50)
    config = replace(config, data=replace(config.data, name="cifar_fs"), iterations=iterations, validation=validation)
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder) / "run", data)
        return Learner.load(Path(folder) / "run")


def rows(iterations: int, episodes: int, data: Path) -> Iterator[dict[str, Any]]:
    for name in LEARNERS:
        learner = Learner.load(name)
        yield from (judged(learner, dataset, data, name, episodes) for dataset in DATA)
    for shots in (1, 5) if iterations else ():
        yield judged(short(shots, iterations, data), "cifar_fs", data, f"cifar_fs-5w{shots}s-multistep4", episodes)


def main() -> None:
    parser = arguments.parser("other_data", __doc__)
    parser.add_argument("--iterations", type=int, default=1_000, help="of the short runs; 0 for none")
    parser.add_argument("--episodes", type=int, default=600)
    arguments.add_data(parser)
    options = parser.parse_args()
    if options.data is None:
        raise SystemExit("other_data: which data? Name the data directory with --data.")
    command = arguments.command("other_data", options)
    results.write_each("other-data", command, [], rows(options.iterations, options.episodes, options.data))
