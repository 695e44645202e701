"""Kernels that start before the one before them has ended, where a GPU can do that (Hopper and later).

A meta-step is a chain of hundreds of kernels of a few microseconds each: starting them one after the other's end is a
part of its time that can be seen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from metastep.step.chain.starting import start


@triton.jit
def follow(CHAINED: tl.constexpr):
    """First of all, wait for what the kernel before writes; and let the next one start, which will wait likewise"""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()


@dataclass(frozen=True)
class Kernel:
    """Its last argument, CHAINED, is what it begins to `follow` with; the launch says so to the GPU too"""

    compiled: Any

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*given: Any, **options: Any) -> Any:
            return self.compiled[grid](*given, **options, **start())

        return launch


def kernel(*numbers: str) -> Callable[[Any], Kernel]:
    """Compiled once for all values of these: Triton would compile others for 1 and for multiples of 16"""
    return lambda function: Kernel(triton.jit(function, do_not_specialize=numbers))
