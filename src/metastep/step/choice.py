"""Which tasks run together, and what is kept of their inner loops: chosen once for each kind of tasks.

How many tasks run at a time is a rule of shapes, so that two equal runs are equal bit by bit; by the clock on request.
What is kept depends on the memory that is free, and changes no bit.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from metastep.core.counting import fastest
from metastep.core.derivatives import is_transformed
from metastep.core.estimators import Estimate, Estimator
from metastep.core.method import Method
from metastep.core.tasks import task_count
from metastep.core.trees import Tree, map_tree, tree_leaves
from metastep.core.windows import InnerLoop
from metastep.step.eager import estimate, examined, refusal
from metastep.step.mapped import Keep, at_once, mapped
from metastep.step.memory import Memory, Schedule, Sizes, in_bytes, schedule_for

FEWEST = 4  # tasks: fewer do not pay for what vmap takes for itself
MAPPED = 4 * 2**20  # bytes of one window's graph: tasks with larger ones run one after the other
TOGETHER = 64 * 2**20  # bytes of all graphs of one window that run at a time
REPEATS = 3  # by the clock

Run = Callable[[Tree, Any, Any], Estimate]


class Chosen(NamedTuple):
    """What computes tasks of one kind."""

    run: Run
    at_once: int
    told: str


class Choices:
    """Choose for each kind of tasks, once."""

    def __init__(
        self, method: Method, loop: InnerLoop, chunk_size: int | None, memory: Memory, benchmark: bool
    ) -> None:
        self._method, self._loop, self._chunk_size = method, loop, chunk_size
        self._memory, self._benchmark = memory, benchmark
        self._estimator = method.estimator(loop)
        self._chosen: dict[Any, Chosen] = {}
        self._specified: dict[Keep, Run] = {}
        self.measured: dict[str, int] = {}
        """Tasks at a time by kind, as the clock has chosen."""

    def repeat(self, measured: dict[str, int]) -> None:
        """Choose as an earlier run has measured."""
        self.measured.update(measured)
        self._chosen.clear()

    def __call__(self, meta: Tree, tasks: Any, keep: Keep = None, start: Any = None) -> Chosen:
        number, reason = task_count(tasks), refusal(self._estimator) or _not_here()
        if reason:
            number = self._chunk_size or at_once(tasks, number)
            if keep not in self._specified:
                self._specified[keep] = mapped(self._method, self._loop, self._chunk_size, keep)
            return Chosen(self._specified[keep], number, f"{_told(number)}, {reason}")
        kind = keep, start is None, tuple((x.shape, x.dtype, x.device) for x in tree_leaves((meta, tasks)))
        if kind not in self._chosen:
            self._chosen[kind] = self._choose(meta, tasks, keep, start, str(kind[2]))
        return self._chosen[kind]

    def _choose(self, meta: Tree, tasks: Any, keep: Keep, start: Any, kind: str) -> Chosen:
        """Choose by the rule or, on request, by the clock: then two runs may differ, so a run keeps it."""
        number, device = task_count(tasks), tree_leaves(meta)[0].device
        sizes = examined(self._estimator, meta, map_tree(lambda x: x[0], tasks))
        by = partial(self._with, sizes, keep, device)
        if self._chunk_size is not None or not self._benchmark or number == 1:
            return by(self._chunk_size or by_rule(sizes, number, device))
        if kind not in self.measured:
            seconds = {size: fastest(REPEATS, by(size).run, meta, tasks, start) for size in (1, number)}
            self.measured[kind] = min(seconds, key=lambda size: seconds[size])
        chosen = by(self.measured[kind])
        return chosen._replace(told=f"{chosen.told}, chosen by the clock")

    def _with(self, sizes: Sizes, keep: Keep, device: torch.device, size: int) -> Chosen:
        windows = 1 if self._estimator.solved else len(self._loop.lengths)
        schedule = schedule_for(in_bytes(self._memory, device) // size, windows, sizes)
        if size > 1:
            schedule = schedule._replace(on_disk=False)  # vmap keeps nothing on disk
        run = mapped(self._method, self._loop, size, keep, way=partial(_eagerly, schedule))
        return Chosen(run, size, f"{_told(size)}, {schedule.told(windows)}")


def by_rule(sizes: Sizes, number: int, device: torch.device) -> int:
    """Return how many tasks run at a time: all on a GPU; on a CPU many small ones, or one large one."""
    if device.type != "cpu":
        return number
    if number < FEWEST or sizes.graph > MAPPED:
        return 1
    chunks = -(-number * sizes.graph // TOGETHER)
    return -(-number // chunks)


def _eagerly(schedule: Schedule, estimator: Estimator, meta: Tree, task: Any, together: bool) -> Estimate:
    return estimate(estimator, schedule, meta, task, mapped=together)


def _not_here() -> str | None:
    if is_transformed():
        return "in a call that is transformed, traced or captured"
    return "in inference mode" if torch.is_inference_mode_enabled() else None


def _told(number: int) -> str:
    return "one task after the other" if number == 1 else f"{number} tasks at a time"
