"""Compare training by the fastest path with training by the plain path.

Both must have the same losses within noise, and learners as good. Three runs of each method, 5-way 1-shot: by the
fastest path available here (derivatives by hand; on a GPU Triton kernels in tf32, captured); by the plain path from the
same start on the same episodes (autograd mapped over tasks, in float32, run eagerly); and by the plain path with
another seed, which shows the noise. All are tested on the same episodes. On a GPU the net is the paper's, on a CPU a
small one; the data are Omniglot or, without it, glyphs.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metastep.core.problems import few_shot
from metastep.core.random import seed_noise
from metastep.data.pictures import Pictures
from metastep.step.ranks import ALONE
from metastep.train.config import FewShot
from metastep.train.device import prepare_device, uses_gpu
from metastep.train.evaluate import OnEpisodes, paired_difference
from metastep.train.fewshot.evaluate import Request, evaluate, fitted, read_images
from metastep.train.fewshot.job import prepare
from metastep.train.fewshot.learner import Learner
from metastep.train.schema import Precision
from study import results
from study.experiments import arguments
from study.experiments.plain import plain_cross_entropy
from study.experiments.settings import configured, data_set, size_here
from study.tables.curves import draw_losses

METHODS = ("multistep4", "maml", "fomaml")
SETTING = "5w1s"
PLAIN = "plain"
RUNS = {"fastest": (False, 0), PLAIN: (True, 0), "plain, another seed": (True, 1)}  # whether plain, seed
GENTLE = 0.1  # the paper's 0.4 keeps Multi-step(4) at chance for the first few thousand iterations
POINTS = 40  # of a smoothed curve
APART = 0.01  # relative difference of two losses that no longer are the same


class Trained(NamedTuple):
    learner: Learner
    losses: Tensor  # (iterations)
    path: str
    seconds: float


def trained(config: FewShot, images: Pictures, plain: bool) -> Trained:
    job, began = prepare(config, images, None, ALONE), time.perf_counter()
    if plain:
        job.gradient = replace(job.gradient, problem=few_shot(job.learner.net, plain_cross_entropy))
    job.begin(0)
    step, losses = job.step, []
    for k in range(config.iterations):
        seed_noise(config.seed, k)
        losses.append(step().loss.clone())  # a replay writes over what the last one returned
    step.settle()
    return Trained(job.learner, torch.stack(losses).cpu(), step.path, time.perf_counter() - began)


def tested(learner: Learner, episodes: int, data: Path | None) -> OnEpisodes:
    """Test a run in full precision, whatever it was trained in."""
    prepare_device(learner.config.device, "float32", learner.config.threads)
    return evaluate(learner, Request(episodes=episodes), data)


def smoothed(losses: Tensor) -> list[list[float]]:
    """(iteration, mean of the losses of so many iterations around it)"""
    size = max(1, len(losses) // POINTS)
    means = losses[: len(losses) // size * size].view(-1, size).mean(1)
    return [[(i + 0.5) * size, round(value, 5)] for i, value in enumerate(means.tolist())]


def distance(losses: Tensor, others: Tensor) -> float:
    """The largest, between smoothed curves"""
    pairs = zip(smoothed(losses), smoothed(others), strict=True)
    return max(abs(one - other) for (_, one), (_, other) in pairs)


def together_for(losses: Tensor, others: Tensor) -> int:
    """Iterations until the two differ by more than APART: rounding grows"""
    apart = ((losses - others).abs() > APART * others.abs()).nonzero()
    return int(apart[0]) if len(apart) else len(losses)


class Found(NamedTuple):
    config: FewShot
    run: Trained
    test: OnEpisodes


def compared(config: FewShot, method: str, episodes: int, data: Path | None) -> list[dict[str, Any]]:
    """A row for each of the runs"""
    images, _ = read_images(config, data)
    found = {}
    for name, (plain, seed) in RUNS.items():
        precision: Precision = "tf32" if uses_gpu("auto") and not plain else "float32"
        its = fitted(replace(config, seed=seed, precision=precision), images)
        run = trained(its, images, plain)
        found[name] = Found(its, run, tested(run.learner, episodes, data))
        print(f"{method}, {name}: {run.seconds:.1f} s, {found[name].test.accuracy:.1f} %, {run.path}", flush=True)
    return [row(method, name, one, found[PLAIN]) for name, one in found.items()]


def row(method: str, name: str, found: Found, plain: Found) -> dict[str, Any]:
    config, run, test = found
    better = paired_difference(test, plain.test)
    assert better is not None, "the same episodes"
    return {
        "setting": f"{config.data.name}-{SETTING}", "implementation": "metastep", "method": method,
        "steps": config.steps, "window": config.window, "tasks": config.tasks, "chunk": config.chunk_size,
        "precision": config.precision, "filters": config.net.options.get("filters"),
        "rate": config.inner.lr, "run": name,
        "seed": config.seed, "iterations": config.iterations, "seconds": round(run.seconds, 1),
        "curve": smoothed(run.losses), "distance": round(distance(run.losses, plain.run.losses), 5),
        "together_for": together_for(run.losses, plain.run.losses), "episodes": test.episodes,
        "accuracy": test.accuracy, "interval": test.interval, "difference": better.mean,
        "difference_interval": better.interval, "note": run.path,
    }  # fmt: skip


def main() -> None:
    parser = arguments.parser("same_path", __doc__)
    on_gpu = uses_gpu("auto")
    parser.add_argument("--iterations", type=int, default=300 if on_gpu else 200)
    parser.add_argument("--episodes", type=int, default=600 if on_gpu else 200, help="to test on")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--gentle", action="store_true", help=f"an inner rate of {GENTLE}: all methods learn at once")
    parser.add_argument("--data", type=Path, help="the data directory that has Omniglot")
    options = parser.parse_args()
    dataset, rows, size = data_set(options.data), [], size_here()
    if options.gentle:
        size = size._replace(rate=GENTLE)
    command = arguments.command("same_path", options, *(["data"] if dataset == "glyphs" else []))
    for method in options.methods.split(","):
        config = configured(dataset, SETTING, method, size, options.iterations)
        rows += compared(config, method, options.episodes, options.data)
        # Whatever stops it now, this much is there.
        path = results.write("same-path" + "-gentle" * options.gentle, command, rows)
        draw_losses(rows, results.picture_of(path.stem))
    print(path)
