"""metastep itself: what training does, and beside it vmap and a loop."""

from itertools import count
from typing import Literal

import torch

from metastep.core import methods
from metastep.core.estimators import Estimator
from metastep.core.problems import few_shot
from metastep.core.tasks import over_tasks, task_count
from metastep.core.trees import add, map_tree, scale
from metastep.core.windows import Task
from metastep.data.images import ImageSet
from metastep.step.ranks import ALONE
from metastep.train.fewshot.config import (
    DataConfig,
    InnerConfig,
    MethodConfig,
    NetConfig,
    OuterConfig,
    TrainConfig,
    ValidationConfig,
)
from metastep.train.fewshot.parts import prepare
from metastep.train.fewshot.stepping import Stepper, stepper
from metastep.train.stop import Stop
from study.bench.cases import SETTINGS, Case, inner_of
from study.bench.workload import OUTER_RATE, PRECISIONS, MetaGradient, Step, Workload, by_gradient, pictures

Mode = Literal["trained", "vmap", "looped"]
NAMES = {"first_order": "fo_maml"}  # where the files of results have another name than `metastep.core.methods`


def step(case: Case, device: torch.device, mode: Mode = "trained") -> Step:
    """One meta-iteration.

    trained: as `metastep train` makes it. vmap: `over_tasks`, mapped over `case.chunk` tasks at a time.
    looped: one task after the other, without vmap.
    """
    return (
        Trained(case, device)
        if mode == "trained"
        else by_gradient(looped if mode == "looped" else mapped)(case, device)
    )


class Trained:
    """The iterations of a training run"""

    def __init__(self, case: Case, device: torch.device) -> None:
        images, config = pictures(case, device), config_of(case, device)
        classes = tuple(str(i) for i in range(len(images)))
        parts = prepare(config, ImageSet(images, classes, classes), None, ALONE)
        self._step: Stepper = stepper(config, parts, ALONE, done=0)
        self._numbers, self._stop = count(), Stop()

    @property
    def path(self) -> str:
        return self._step.path

    def __call__(self) -> None:
        self._step(next(self._numbers), self._stop)


def config_of(case: Case, device: torch.device) -> TrainConfig:
    setting, inner = SETTINGS[case.setting], inner_of(case)
    shape, window = setting.episodes, case.window if case.window > 1 else None
    return TrainConfig(
        DataConfig(ways=shape.ways, shots=shape.shots, queries=shape.queries),
        NetConfig(setting.net, setting.filters, channels=setting.channels, size=setting.size),
        InnerConfig("sgd", inner.lr, case.steps, momentum=inner.momentum, weight_decay=inner.weight_decay),
        MethodConfig(NAMES.get(case.method, case.method), window),  # type: ignore[arg-type]
        OuterConfig(lr=OUTER_RATE, tasks=case.tasks),
        validation=ValidationConfig(every=0),
        precision=PRECISIONS[case.precision],
        device="cuda" if device.type == "cuda" else "cpu",
        threads=torch.get_num_threads(),
        chunk_size=case.chunk,
    )


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
