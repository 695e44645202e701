"""metastep itself."""

from typing import Literal

import torch

from metastep import methods
from metastep.bench.cases import Case, inner_of
from metastep.bench.workload import MetaGradient, Step, Workload, by_gradient
from metastep.estimators import Estimator
from metastep.problems import few_shot
from metastep.tasks import over_tasks, task_count
from metastep.trees import add, map_tree, scale
from metastep.windows import Task

Mode = Literal["eager", "looped"]
NAMES = {"first_order": "fo_maml"}  # where the files of results have another name than `metastep.methods`


def step(case: Case, device: torch.device, mode: Mode = "eager") -> Step:
    return metastep_step(case, device, mode)


def metastep_step(case: Case, device: torch.device, mode: Mode) -> Step:
    """One meta-iteration.

    eager: `over_tasks`, mapped over `case.chunk` tasks at a time. looped: one task after the other, without vmap.
    """
    return by_gradient(looped if mode == "looped" else mapped)(case, device)


def mapped(work: Workload) -> MetaGradient:
    estimate = over_tasks(estimator_of(work), work.case.chunk, check_finite=False)  # looking would wait for a GPU
    return lambda tasks: estimate(work.meta, tasks).grad


def looped(work: Workload) -> MetaGradient:
    estimate = estimator_of(work)

    def gradient(tasks: Task) -> dict[str, torch.Tensor]:
        number = task_count(tasks)
        total = estimate(work.meta, map_tree(lambda x: x[0], tasks)).grad
        for i in range(1, number):
            total = add(total, estimate(work.meta, map_tree(lambda x, i=i: x[i], tasks)).grad)
        return scale(1 / number, total)  # type: ignore[no-any-return]

    return gradient


def estimator_of(work: Workload) -> Estimator:
    case = work.case
    method = getattr(methods, NAMES.get(case.method, case.method))
    options = {"window": case.window} if case.window > 1 else {}
    problem = few_shot(work.net, torch.nn.functional.cross_entropy)
    estimator: Estimator = method(problem, inner_of(case), case.steps, **options)
    return estimator
