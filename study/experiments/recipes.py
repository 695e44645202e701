"""Train methods for equal CPU time on Omniglot, with and without clipping of the meta-gradient, and test each.

Every run is one process with one thread. It trains a small Conv4 until it has used --seconds of processor time, and is
validated on held-out classes on the way. Validation and the final test do not count as training time. The file is
written after every run: the same command continues with the next.
"""

import time
from collections.abc import Iterator
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy

import metastep as ms
from metastep.core.trees import norm
from metastep.data.draw import draw
from metastep.data.episodes import Episodes
from metastep.data.registry import load
from metastep.nets.conv4 import Conv4
from study import results
from study.experiments import arguments

FILTERS, STEPS, TASKS, QUERIES = 16, 8, 8, 5
LOOKS = (5.0, 10.0, 23.0, 40.0, 60.0)  # seconds of training at which a run is validated
VALIDATED, TESTED, AT_ONCE = 100, 400, 10  # episodes, and how many are judged together
VALIDATION_SEED, TEST_SEED = 2**40, 2**41
METHODS: dict[str, ms.methods.Method] = {
    "maml": ms.MAML(),
    "multistep2": ms.MultiStep(window=2),
    "multistep4": ms.MultiStep(window=4),
    "fomaml": ms.FOMAML(),
}


class Trial(NamedTuple):
    """One run: what is trained, and by which recipe."""

    method: str
    ways: int
    lr: float
    clip: float | None
    seed: int


def trials(seeds: int) -> Iterator[Trial]:
    """Yield every run, the most wanted first."""
    for first in (0.5, 1.0, 2.0):
        yield from (Trial("multistep4", 5, 0.4, first, seed) for seed in range(seeds + 2))
    others: list[tuple[str, float | None]] = [("multistep4", None), *product(("maml", "fomaml"), (0.5, None))]
    for method, clip in others:
        yield from (Trial(method, 5, 0.4, clip, seed) for seed in range(seeds))
    for method, clip in product(METHODS, (0.5, None)):
        yield from (Trial(method, 5, 0.1, clip, seed) for seed in range(seeds))
    for ways, clip in ((20, 0.5), (20, None), (20, 2.0), (5, 10.0), (5, 0.1)):
        yield from (Trial("multistep4", ways, 0.4, clip, seed) for seed in range(seeds))


def run(given: tuple[Trial, float, Path]) -> dict[str, Any]:
    """Train and judge one trial."""
    trial, seconds, data = given
    torch.set_num_threads(1)
    train, validation, test = (load("omniglot", data).classes(split).rows()[0] for split in ("train", "val", "test"))
    torch.manual_seed(trial.seed)
    net = Conv4(ways=trial.ways, filters=FILTERS)
    gradient = gradient_of(net, trial)
    step = ms.MetaStep(gradient, net, torch.optim.Adam(net.parameters(), lr=1e-3), clip=trial.clip)
    tasks = TASKS if trial.ways == 5 else 2
    used, iterations, largest, looks, failed = 0.0, 0, 0.0, [], ""
    marks = [mark for mark in LOOKS if mark < seconds] + [seconds]
    while marks:
        batch = draw(train, Episodes(trial.ways, 1, QUERIES), trial.seed, iterations, tasks)
        began = time.process_time()
        try:
            found = step(batch)
        except ms.NonFiniteError as error:
            failed = str(error)
            break
        used, iterations = used + time.process_time() - began, iterations + 1
        if iterations <= 20:
            largest = max(largest, float(norm(found.grad)))
        if used >= marks[0]:
            accuracy, _ = judged(gradient, net, validation, trial.ways, VALIDATED, VALIDATION_SEED)
            looks.append({"seconds": marks.pop(0), "iterations": iterations, "accuracy": accuracy})
    accuracy, interval = judged(gradient, net, test, trial.ways, TESTED, TEST_SEED)
    return {
        **trial._asdict(), "seconds": round(used, 1), "iterations": iterations, "validation": looks,
        "largest_norm_at_start": largest, "accuracy": accuracy, "interval": interval, "episodes": TESTED,
        "failed": failed,
    }  # fmt: skip


def gradient_of(net: torch.nn.Module, trial: Trial) -> ms.MetaGradient:
    problem = ms.few_shot(net, cross_entropy, {"accuracy": ms.accuracy})
    inner = ms.SGD(lr=trial.lr, momentum=0.9, weight_decay=1e-4)
    return ms.MetaGradient(problem, METHODS[trial.method], inner, steps=STEPS)


def judged(
    gradient: ms.MetaGradient, net: torch.nn.Module, images: torch.Tensor, ways: int, episodes: int, seed: int
) -> tuple[float, float]:
    """Return the accuracy after exact inner steps, and its 95 % interval, in per cent."""
    exact = ms.MetaGradient(gradient.problem, ms.MAML(), gradient.inner, steps=STEPS)
    kind = Episodes(ways, 1, 15 if ways == 5 else 5)
    found = [
        exact.judge(net, draw(images, kind, seed, k, AT_ONCE)).metrics["accuracy"] for k in range(episodes // AT_ONCE)
    ]
    each = 100 * torch.cat(found).double()
    return round(float(each.mean()), 2), round(float(1.96 * each.std() / len(each) ** 0.5), 2)


def main() -> None:
    parser = arguments.parser("recipes", __doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time of each run's training")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    arguments.add_data(parser)
    options = parser.parse_args()
    command = arguments.command("recipes", options, "jobs")
    rows = results.kept("recipes", command)
    done = [tuple(row[name] for name in Trial._fields) for row in rows]
    left = [(trial, options.seconds, options.data) for trial in trials(options.seeds) if tuple(trial) not in done]
    with get_context("spawn").Pool(options.jobs) as pool:
        results.write_each("recipes", command, rows, pool.imap_unordered(run, left))
