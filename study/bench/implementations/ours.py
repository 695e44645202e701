"""metastep itself: what training does, and the same meta-gradient by autograd, mapped or one by one."""

from collections.abc import Callable
from typing import Literal

import torch
from torch.nn.functional import cross_entropy

from metastep.core.method import Method
from metastep.core.problems import few_shot
from metastep.core.registry import named
from metastep.data.pictures import Pictures
from metastep.step.gradient import MetaGradient
from metastep.step.mapped import mapped
from metastep.step.ranks import ALONE
from metastep.train.config import Data, FewShot, Net, Outer, Validation
from metastep.train.fewshot.job import prepare
from study.bench.cases import SETTINGS, Case, inner_of
from study.bench.workload import OUTER_RATE, PRECISIONS, BatchGradient, Step, Workload, by_gradient, pictures

Mode = Literal["trained", "vmap", "looped"]
NAMES = {"first_order": "fo_maml"}  # where the files of results have another name than the registry of methods


def step(case: Case, device: torch.device, mode: Mode = "trained") -> Step:
    """Return one meta-iteration.

    trained: the `MetaStep` of `metastep train`. vmap: autograd, mapped over `case.chunk` tasks at a time.
    looped: autograd, one task after the other without vmap.
    """
    return Trained(case, device) if mode == "trained" else by_gradient(BY_AUTOGRAD[mode])(case, device)


class Trained:
    """The iterations of a training run"""

    def __init__(self, case: Case, device: torch.device) -> None:
        images, config = pictures(case, device), config_of(case, device)
        classes = tuple(str(i) for i in range(len(images)))
        job = prepare(config, Pictures.of_rows(images, classes), None, ALONE)
        job.begin(0)
        self._step = job.step

    @property
    def path(self) -> str:
        return self._step.path

    def __call__(self) -> None:
        self._step()


def config_of(case: Case, device: torch.device) -> FewShot:
    setting, inner = SETTINGS[case.setting], inner_of(case)
    shape = setting.episodes
    return FewShot(
        data=Data(ways=shape.ways, shots=shape.shots, queries=shape.queries),
        net=Net(setting.net, {"filters": setting.filters}, setting.channels, setting.size),
        inner=inner,
        steps=case.steps,
        method=method_of(case),
        outer=Outer(lr=OUTER_RATE),
        tasks=case.tasks,
        validation=Validation(every=0),
        precision=PRECISIONS[case.precision],
        device="cuda" if device.type == "cuda" else "cpu",
        threads=torch.get_num_threads(),
        chunk_size=case.chunk,
    )


def method_of(case: Case) -> Method:
    window = {"window": case.window} if case.window > 1 or case.method == "multi_step" else {}
    found: Method = named("method", NAMES.get(case.method, case.method))(**window)
    return found


def vmapped(work: Workload) -> BatchGradient:
    return by_autograd(work, work.case.chunk)


def looped(work: Workload) -> BatchGradient:
    return by_autograd(work, 1)


BY_AUTOGRAD: dict[str, Callable[[Workload], BatchGradient]] = {"vmap": vmapped, "looped": looped}


def by_autograd(work: Workload, chunk_size: int | None) -> BatchGradient:
    """Return the mean meta-gradient by autograd. Calling a `MetaGradient` would choose hand-written derivatives."""
    gradient = gradient_of(work)
    estimate = mapped(gradient.method, gradient.loop, chunk_size)
    return lambda tasks: estimate(work.meta, tasks, None).grad


def gradient_of(work: Workload) -> MetaGradient:
    case = work.case
    return MetaGradient(few_shot(work.net, cross_entropy), method_of(case), inner_of(case), steps=case.steps)
