"""Measure how far the rows of a trained head have moved apart, and what the learner is with a head from zero.

    python -m study run heads runs/reproduce/omniglot-* --data DATA

A task's classes come in random order, so that no row has anything to say about one class rather than another.
"""

from pathlib import Path
from typing import Any

from torch import Tensor

from metastep import Learner
from metastep.train.evaluate import OnEpisodes, paired_difference
from metastep.train.fewshot.evaluate import Request, evaluate
from study import results
from study.experiments import arguments

HEAD = "head.weight"
EARLY = 1  # steps


def apart(weight: Tensor) -> Tensor:
    """Return the distance of each row from the mean of all."""
    distances: Tensor = (weight - weight.mean(0)).norm(dim=1)
    return distances


def from_zero(learner: Learner) -> Learner:
    """A head for other ways starts from zero, so also one for these by way of others"""
    ways = learner.config.data.ways
    return learner.changed(ways=ways + 1).changed(ways=ways)


def row(folder: Path, episodes: int, data: Path | None) -> dict[str, Any]:
    learner = Learner.load(folder)
    config, rows = learner.config, apart(learner.meta[HEAD].detach())
    as_is, zero = (evaluate(one, Request(episodes=episodes), data) for one in (learner, from_zero(learner)))
    gain = paired_difference(zero, as_is)
    assert gain is not None, "the same episodes"
    return {
        "run": folder.name, "setting": f"{config.data.name}-{config.data.ways}w{config.data.shots}s",
        "implementation": "metastep", "method": folder.name.split("-")[2], "steps": config.steps,
        "window": config.window, "tasks": config.tasks, "chunk": config.chunk_size, "precision": "float32",
        "episodes": episodes, "median_apart": float(rows.median()), "most_apart": float(rows.max()),
        "accuracy": as_is.accuracy, "interval": as_is.interval, "from_zero": zero.accuracy,
        "gain": gain.mean, "gain_interval": gain.interval, "early": early(as_is), "early_from_zero": early(zero),
        "note": "",
    }  # fmt: skip


def early(evaluation: OnEpisodes) -> float | None:
    """Accuracy after EARLY steps; a window may be longer"""
    return next((score.accuracy for score in evaluation.by_step if score.step == EARLY), None)


def main() -> None:
    parser = arguments.parser("heads", __doc__)
    arguments.add_runs(parser)
    parser.add_argument("--episodes", type=int, default=100)
    arguments.add_data(parser)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    command = arguments.command("heads RUNS", options)
    for folder in options.runs:
        rows.append(row(folder, options.episodes, options.data))
        print(*(f"{name} {value}" for name, value in rows[-1].items() if isinstance(value, float | str)), flush=True)
        path = results.write("heads", command, rows)
    print(path)
