"""Train methods for equal CPU time by several recipes (rates, clipping of the meta-gradient), and test each.

Every run is one process with one thread. It trains a small net until it has used --seconds of processor time, and is
validated on held-out classes on the way. Validation and the final test do not count as training time. All recipes are
tried with one seed; those that are best on validation classes are run with more. The file is written after every run:
the same command continues with the next, whatever groups are asked for.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

import metastep as ms
from metastep.core.trees import norm
from study import results
from study.bench.results import Row
from study.experiments import arguments
from study.experiments.recipe_subjects import Subject, export, subject

STEPS, REPTILE_STEPS = 8, 5
LOOKS = (0.1, 0.25, 0.5, 0.75, 1.0)  # parts of the time after which a run is validated
VALIDATED, TESTED = 100, 400  # episodes
METHODS: dict[str, ms.methods.Method] = {
    "maml": ms.MAML(),
    "multistep2": ms.MultiStep(window=2),
    "multistep4": ms.MultiStep(window=4),
    "fomaml": ms.FOMAML(),
    "reptile": ms.Reptile(),
}


@dataclass(frozen=True)
class Trial:
    """One run: what is trained, and by which recipe."""

    subject: str
    method: str
    lr: float
    momentum: float = 0.9
    clip: float | None = None
    warmup: int = 0
    ramp: int = 0
    outer: float = 1e-3
    schedule: str = "constant"
    seed: int = 0


FALLING: dict[str, Any] = {"clip": 1.0, "schedule": "linear"}  # the outer rate falls to zero
RATES = {
    "omniglot-5w": (0.4, 0.1), "omniglot-20w": (0.4, 0.1), "cifar_fs-5w": (0.1, 0.02), "folder-5w": (0.4, 0.1),
    "sinusoid": (0.05, 0.01), "mini_imagenet-5w": (0.1, 0.02),
}  # fmt: skip
"""Two inner rates of each subject."""


def compared(about: str, high: float, low: float) -> Iterator[Trial]:
    """Yield the recipes of every method, the most wanted first."""
    swept = Trial(about, "multistep4", low), Trial(about, "maml", low)
    first_order = Trial(about, "fomaml", high, momentum=0.0)  # as the paper has it
    for outer in (1e-2, 3e-3):
        yield from (replace(trial, **FALLING, outer=outer) for trial in (*swept, first_order))
    yield Trial(about, "reptile", 3e-3, 0.0, outer=1.0, schedule="linear")  # Adam inside, as its authors have it
    yield replace(swept[0], **FALLING, outer=1e-2, lr=high)
    yield from (replace(trial, **FALLING, outer=3e-2) for trial in swept)
    yield from swept  # neither clipped nor faster


def beginnings() -> Iterator[Trial]:
    """Yield clip values from 0.1 to 10, and what can be done instead of clipping."""
    known = replace(Trial("omniglot-5w", "multistep4", 0.4), **FALLING, outer=1e-2)
    yield from (replace(known, clip=clip) for clip in (None, 0.1, 0.3, 3.0, 10.0))
    yield from (replace(known, clip=None, warmup=100), replace(known, clip=None, ramp=100))
    for about, (high, _) in RATES.items():
        other = replace(known, subject=about, lr=high)
        yield from (replace(other, clip=clip) for clip in (0.1, 10.0) if about != "omniglot-5w")


def groups() -> dict[str, list[Trial]]:
    """Return the recipes of each group, the most wanted first."""
    return {about: list(compared(about, *rates)) for about, rates in RATES.items()} | {"clips": list(beginnings())}


def chosen(name: str, rows: list[Row]) -> list[Trial]:
    """Return what more seeds are for: the recipes that were best on validation classes with the first seed.

    All clip values get more seeds.
    """
    if name == "clips":
        return groups()[name]
    tried = {trial_of(row): quality(row) for row in rows}
    found = [trial for trial in groups()[name] if trial in tried and trial.schedule != "constant"]
    methods = dict.fromkeys(trial.method for trial in found)
    return [max((trial for trial in found if trial.method == method), key=tried.__getitem__) for method in methods]


def quality(row: Row) -> float:
    """Return how good a run is on validation classes: the higher, the better."""
    if row["failed"] or not row["validation"]:
        return -math.inf
    score: float = row["validation"][-1]["score"]
    return score if row["measure"] == "accuracy" else -score


def trial_of(row: Row) -> Trial:
    """Return what a row is a run of."""
    return Trial(**{field.name: row[field.name] for field in fields(Trial)})


# ---- one run


def run(given: tuple[Trial, float, Path | None]) -> dict[str, Any]:
    """Train and judge one trial."""
    trial, seconds, folder = given
    torch.set_num_threads(1)
    about = subject(trial.subject, folder)
    net, budget = about.net(trial.seed), seconds * about.share
    gradient = gradient_of(about, net, trial)
    used = [0.0]
    optimizer = optimizer_of(net, trial)
    scheduler = LambdaLR(optimizer, lambda k: rate(trial.schedule, used[0] / budget))
    step = ms.MetaStep(
        gradient, net, optimizer, clip=trial.clip, warmup=trial.warmup, ramp=trial.ramp, scheduler=scheduler
    )
    about.drawn(trial.seed, 0, trial.method == "reptile")  # reads the pictures

    norms, growths, looks, failed = list[float](), list[float](), list[dict[str, Any]](), ""
    marks = [look * budget for look in LOOKS]
    while marks:
        began = time.process_time()
        try:
            found = step(about.drawn(trial.seed, len(norms), trial.method == "reptile"))
        except ms.NonFiniteError as error:
            failed = str(error)
            break
        used[0] += time.process_time() - began
        norms.append(float(norm(found.grad)))
        growths += [] if found.growth is None else [float(found.growth.median())]
        if used[0] >= marks[0]:
            score, _ = judged(about, gradient, net, trial, "val", VALIDATED)
            looks.append({"seconds": round(used[0], 1), "iterations": len(norms), "score": score})
            marks = [mark for mark in marks if mark > used[0]]
    score, interval = judged(about, gradient, net, trial, "test", TESTED)
    return {
        **asdict(trial), "seconds": round(used[0], 1), "iterations": len(norms), "validation": looks,
        "norms": sampled(norms), "growth": sampled(growths), "measure": about.score, "score": score,
        "interval": interval, "episodes": TESTED, "failed": failed,
    }  # fmt: skip


def gradient_of(about: Subject, net: torch.nn.Module, trial: Trial) -> ms.MetaGradient:
    """Return what is trained by. Reptile has its own inner optimizer and mini-batches."""
    problem, method = about.problem(net), METHODS[trial.method]
    if trial.method == "reptile":
        return ms.MetaGradient(problem, method, ms.Adam(trial.lr, betas=(0.0, 0.999)), steps=REPTILE_STEPS, batch=10)
    return ms.MetaGradient(problem, method, ms.SGD(trial.lr, trial.momentum, weight_decay=1e-4), steps=STEPS)


def optimizer_of(net: torch.nn.Module, trial: Trial) -> torch.optim.Optimizer:
    kind = torch.optim.SGD if trial.method == "reptile" else torch.optim.Adam
    return kind(net.parameters(), lr=trial.outer)


def rate(schedule: str, done: float) -> float:
    """Return the part of the outer rate when a part of the time is over."""
    falling = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * min(1.0, done)))}
    return max(0.0, falling[schedule])


def judged(
    about: Subject, gradient: ms.MetaGradient, net: torch.nn.Module, trial: Trial, split: str, episodes: int
) -> tuple[float, float]:
    """Return the mean score after exact inner steps, and its 95 % interval."""
    steps = 50 if trial.method == "reptile" else STEPS
    exact = ms.MetaGradient(gradient.problem, ms.MAML(), gradient.inner, steps=steps)
    each = about.judged(exact, net, split, episodes)
    return round(float(each.mean()), 3), round(float(1.96 * each.std() / len(each) ** 0.5), 3)


def sampled(values: list[float], parts: int = 10) -> list[float]:
    """Return the median of the first 20 values, and of each tenth of all."""
    if not values:
        return []
    size = max(1, len(values) // parts)
    pieces = [values[:20], *(values[i : i + size] for i in range(0, len(values), size))]
    return [float(f"{median(piece):.4g}") for piece in pieces]


def main() -> None:
    parser = arguments.parser("recipes", __doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time of each run's training")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(groups()), default=list(groups()), help="these groups alone")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time, of one thread each")
    parser.add_argument("--export", type=Path, help="write the pictures to this folder, and train nothing")
    arguments.add_data(parser)
    options = parser.parse_args()
    if options.export:
        export(options.data, options.export)
        return
    command = arguments.command("recipes", options, "only", "workers", "export")
    rows = results.kept("recipes", command)
    with get_context("spawn").Pool(options.workers) as pool:
        for name in options.only:
            for seed in range(options.seeds):
                trials = chosen(name, rows) if seed else groups()[name]
                done = set(map(trial_of, rows))
                left = [
                    (t, options.seconds, options.data) for t in (replace(t, seed=seed) for t in trials) if t not in done
                ]
                print(f"{name}: {len(left)} runs with seed {seed}", flush=True)
                results.write_each("recipes", command, rows, pool.imap_unordered(run, left))
