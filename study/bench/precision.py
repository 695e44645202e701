"""What a precision does to the meta-gradient: its distance from float64, on the same episodes and from the same θ.

Beside it, how far the two halves of a meta-batch are from each other: that much is chance in any case.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from metastep.core.trees import Tree, map_tree, to_vector
from metastep.core.windows import Task
from metastep.data.episodes import Episodes
from metastep.errors import MetastepError, first_line
from metastep.step.chain.chain import NotAChainError, chain_of
from metastep.step.chain.serving import Served
from metastep.step.gradient import Engine, MetaGradient
from metastep.train.config import FewShot
from metastep.train.device import prepare_device
from metastep.train.fewshot.evaluate import Sampler
from metastep.train.fewshot.learner import Learner, gradient_of
from study.bench.cases import INNER, SETTINGS, Case
from study.bench.implementations.ours import config_of
from study.bench.results import Row, about_case
from study.bench.workload import PRECISIONS, pictures

ON_CPU = ("fp32", "bf16")
ON_GPU = ("fp32", "tf32", "tf32x3", "bf16")
BY_KERNELS = ("tf32x3", "bf16")  # on a GPU: what the products of our kernels are made of; all else is float32
LEARNER = "omniglot-5w1s"  # comes with metastep


class Look(NamedTuple):
    """Of one precision, from one θ, on one meta-batch"""

    error: float
    cosine: float
    path: str


def rows(case: Case, device: torch.device, seeds: Sequence[int]) -> Iterator[Row]:
    """For each start and precision: means over seeds, and the worst of them"""
    require_comparable(case)
    for start, trained in starts(case).items():
        exact = [gradient(case, "fp64", device, seed, trained) for seed in seeds]
        apart = statistics.mean(halves(case, device, seed, trained) for seed in seeds)
        for precision in ON_GPU if device.type == "cuda" else ON_CPU:
            row = about_case(case) | {"precision": precision, "start": start, "seeds": list(seeds)}
            try:
                looks = [
                    look(case, precision, device, seed, trained, g) for seed, (g, _) in zip(seeds, exact, strict=True)
                ]
            except (NotAChainError, ModuleNotFoundError):
                continue  # no kernels do this
            except RuntimeError as error:  # an operator that is not there in this precision
                yield row | {"relative_error": None, "halves_difference": apart, "note": first_line(error)}
                continue
            yield row | {
                "relative_error": statistics.mean(one.error for one in looks),
                "worst_error": max(one.error for one in looks), "cosine": statistics.mean(one.cosine for one in looks),
                "halves_difference": apart, "note": looks[0].path,
            }  # fmt: skip


def require_comparable(case: Case) -> None:
    if case.setting not in SETTINGS or case.method in ("ggs_maml", "es_maml"):
        raise MetastepError(
            f"{case.setting}, {case.method}: precisions are compared on the same episodes, without random directions. "
            "Choose a few-shot setting, and another method than ggs_maml and es_maml."
        )


def starts(case: Case) -> dict[str, Tree]:
    """θ as training begins with it (None); and as it ends, where a learner of this shape comes with metastep"""
    learner, setting = shipped(), SETTINGS[case.setting]
    config = learner.config
    fits = (config.data.ways, config.net.size) == (setting.episodes.ways, setting.size) and setting.filters == 64
    return {"fresh": None} | ({"trained": learner.meta} if fits else {})


@cache
def shipped() -> Learner:
    return Learner.load(LEARNER)


def look(case: Case, precision: str, device: torch.device, seed: int, trained: Tree, exact: Tensor) -> Look:
    found, path = gradient(case, precision, device, seed, trained)
    cosine = torch.dot(found, exact) / (found.norm() * exact.norm())
    return Look(float((found - exact).norm() / exact.norm()), float(cosine), path)


def halves(case: Case, device: torch.device, seed: int, trained: Tree) -> float:
    """‖g₁ − g₂‖ / ‖g₁ + g₂‖/2, in float64"""
    half = case.tasks // 2
    first, second = (gradient(case, "fp64", device, seed, trained, (at, half))[0] for at in (0, half))
    return float(2 * (first - second).norm() / (first + second).norm())


@torch.no_grad()
def gradient(
    case: Case, precision: str, device: torch.device, seed: int, trained: Tree, part: tuple[int, int] | None = None
) -> tuple[Tensor, str]:
    """The meta-gradient as one vector of float64, and how it was computed; `part`: the first task, how many"""
    config = configured(case, precision, device, seed)
    prepare_device(config.device, config.precision, config.threads)
    learner = Learner.fresh(config)
    if trained is not None:
        map_tree(lambda own, other: own.copy_(other), learner.meta, trained)
    learner.net.to(device, dtype_of(precision, device))
    first, tasks = part or (0, case.tasks)
    batch = sampler(case, config.train_episodes, seed, device, precision)(0, tasks, first)
    engine = way_to(config, learner, precision, device, batch)
    return to_vector(engine.run(learner.meta, batch).grad).double(), engine.path


def way_to(config: FewShot, learner: Learner, precision: str, device: torch.device, batch: Task) -> Engine:
    described, own = gradient_of(config, learner.net), device.type == "cuda" and precision in BY_KERNELS
    return by_kernels(described, config.net.size, precision) if own else described.engine(learner.meta, batch)


def dtype_of(precision: str, device: torch.device) -> torch.dtype:
    """Return the type of parameters and pictures. Without kernels, bf16 is all of the arithmetic."""
    if precision == "fp64":
        return torch.float64
    return torch.bfloat16 if precision == "bf16" and device.type == "cpu" else torch.float32


def configured(case: Case, precision: str, device: torch.device, seed: int) -> FewShot:
    config = replace(config_of(case, device), seed=seed, precision=PRECISIONS.get(precision, "float32"))
    trained = shipped().config  # pictures like its own are for what it was trained to do
    known = case.data is not None and SETTINGS[case.setting].pictures[0] == trained.data.name
    rate = trained.inner.lr if known else INNER.lr
    return replace(config, inner=replace(config.inner, lr=rate), net=config.net.changed(head_init="zero"))


def sampler(case: Case, episodes: Episodes, seed: int, device: torch.device, precision: str) -> Sampler:
    return Sampler(pictures(case, device), None, episodes, seed, dtype_of(precision, device))


def by_kernels(described: MetaGradient, size: int, precision: str) -> Engine:
    """tf32x3: products as three of tf32, which have nearly the digits of float32; bf16: of factors rounded to it"""
    from metastep.step.chain.launch import TritonOperators, require_kernels  # only here: Triton is for GPUs

    chain = chain_of(described.problem.made_of.module, size)
    require_kernels(chain)
    served = Served(described, chain, TritonOperators(precision), f"by Triton kernels ({precision})")
    return Engine(served.estimate, served.require_values, served.path)
