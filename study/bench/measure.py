"""Time and memory of one case, in one configuration: the steps that are timed are those whose memory counts."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import torch

from study.bench.cases import Case
from study.bench.implementations import IMPLEMENTATIONS
from study.bench.machines import Machine
from study.bench.workload import Step

WARM_UP = 2  # steps after the first one
Clock = Callable[[], float]
LEAST_SECONDS = 0.2  # that a repeat lasts: short steps are timed in groups, without waiting for each


@dataclass(frozen=True)
class Cost:
    ms: float
    """Of one meta-iteration: the median of the repeats."""
    ms_spread: float
    """Slowest less fastest."""
    peak_mib: float
    start_seconds: float
    """To the end of the first step, with all that is built, compiled and captured for it."""
    path: str = ""
    """How it was computed, where the implementation has a choice."""


class Started(NamedTuple):
    """A case whose first step is done"""

    step: Step
    machine: Machine
    seconds: float

    @property
    def path(self) -> str:
        return getattr(self.step, "path", "")


def started(case: Case, device: torch.device) -> Started:
    implementation = IMPLEMENTATIONS[case.implementation]
    torch.backends.cudnn.benchmark = True  # as in training; for all of them, whichever comes first
    implementation.load(case, device)
    start = time.perf_counter()
    machine = implementation.machine(case, device)
    step = implementation.step(case, device)
    seconds_of(step, machine, 1)
    return Started(step, machine, time.perf_counter() - start)


def measure(case: Case, device: torch.device, repeats: int) -> Cost:
    begun = started(case, device)
    step, machine, start_seconds = begun
    times = timed(step, machine, repeats)
    ms, spread = 1e3 * statistics.median(times), 1e3 * (max(times) - min(times))
    return Cost(ms, spread, machine.peak_mib(), start_seconds, begun.path)


def timed(step: Step, machine: Machine, repeats: int) -> list[float]:
    """Seconds of a step in each repeat"""
    number = group_of(step, machine)
    return [seconds_of(step, machine, number) / number for _ in range(repeats)]


def group_of(step: Step, machine: Machine) -> int:
    """Warm up; how many steps a repeat has"""
    once = seconds_of(step, machine, WARM_UP) / WARM_UP
    return max(1, ceil(LEAST_SECONDS / once))


def wall() -> float:
    return time.perf_counter()


def seconds_of(step: Step, machine: Machine, number: int, clock: Clock = wall) -> float:
    machine.wait()
    start = clock()
    for _ in range(number):
        step()
    machine.wait()
    return clock() - start
