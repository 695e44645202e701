"""Where the time of a meta-iteration goes: kernels of a GPU, or operators on a CPU, by name."""

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from metastep.step.chain.starting import one_after_the_other
from study.bench.cases import SETTINGS, Case
from study.bench.measure import seconds_of, started, timed
from study.bench.results import Row, about_case

ITERATIONS = {"cuda": 5, "cpu": 1}  # an operator costs the profiler far more than a replayed kernel does
ACTIVITIES = {"cuda": ProfilerActivity.CUDA, "cpu": ProfilerActivity.CPU}
REPEATS, SHOWN = 3, 30


class Part(NamedTuple):
    """All calls of a kernel in one meta-iteration"""

    name: str
    calls: float
    ms: float


def row(case: Case, device: torch.device) -> Row:
    """ms: without the profiler, which slows things down; busy_ms: the sum over kernels, each by itself"""
    begun = started(case, device)
    ms = 1e3 * statistics.median(timed(begun.step, begun.machine, REPEATS))
    with one_after_the_other():
        if device.type == "cuda" and case.setting in SETTINGS:  # else its kernels start early
            begun = started(case, device)
        with profile(activities=[ACTIVITIES[device.type]]) as profiler:
            seconds_of(begun.step, begun.machine, ITERATIONS[device.type])
    parts = sorted(merged(profiler, device), key=lambda part: -part.ms)
    busy = sum(part.ms for part in parts)
    return about_case(case) | {
        "ms": round(ms, 3), "busy_ms": round(busy, 3), "launches": round(sum(part.calls for part in parts), 1),
        "kernels": [shown(part, busy) for part in summarised(parts)], "note": begun.path,
    }  # fmt: skip


def merged(profiler: profile, device: torch.device) -> Iterator[Part]:
    """Return what ran on the device. Instances of one template are one kernel."""
    counts: dict[str, int] = defaultdict(int)
    micros: dict[str, float] = defaultdict(float)
    on_gpu, iterations = device.type == "cuda", ITERATIONS[device.type]
    for event in profiler.key_averages():
        if (event.device_type.name == "CUDA") == on_gpu:
            name = short(event.key)
            counts[name] += event.count
            micros[name] += event.self_device_time_total if on_gpu else event.self_cpu_time_total
    return (Part(name, counts[name] / iterations, micros[name] / 1e3 / iterations) for name in counts)


# A compiler or a library has hundreds of such kernels, each for one place.
FAMILIES = {
    "^triton_poi_": "inductor: pointwise", "^triton_(red|per)_": "inductor: reductions",
    "fprop": "convolution forward", "dgrad": "convolution, input gradient",
    "wgrad": "convolution, weight gradient", "gemm": "matrix product",
}  # fmt: skip


def short(name: str) -> str:
    """void at::native::reduce_kernel<512, 1, …>(…) -> reduce_kernel; of a family, its name"""
    for pattern, family in FAMILIES.items():
        if re.search(pattern, name):
            return family
    name = re.sub(r"^void |(\(anonymous namespace\)|<unnamed>)::", "", name)
    plain = re.split(r"[<(]", name, maxsplit=1)[0]
    return (plain.rsplit("::", 1)[-1] if plain.startswith("at::") else plain).strip()


def summarised(parts: list[Part]) -> list[Part]:
    rest = parts[SHOWN:]
    others = Part("all others", sum(part.calls for part in rest), sum(part.ms for part in rest))
    return parts[:SHOWN] + ([others] if rest else [])


def shown(part: Part, busy: float) -> dict[str, Any]:
    share = part.ms / busy if busy else 0.0
    return {"name": part.name, "calls": round(part.calls, 1), "ms": round(part.ms, 4), "share": round(share, 4)}
