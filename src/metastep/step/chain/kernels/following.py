"""Start kernels before the previous one has ended, on GPUs that support it (Hopper and later).

A meta-step is a sequence of hundreds of kernels of a few microseconds each. Waiting for each to end before the next one
starts takes a visible part of the time.
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
    """Wait for the writes of the previous kernel, and let the next one start, which waits in the same way."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()


@dataclass(frozen=True)
class Kernel:
    """Launch a kernel. Its last argument, CHAINED, goes to `follow`; the launch tells the GPU the same."""

    compiled: Any

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*given: Any, **options: Any) -> Any:
            return self.compiled[grid](*given, **options, **start())

        return launch


def kernel(*numbers: str) -> Callable[[Any], Kernel]:
    """Compile once for all values of these arguments. Triton would specialise for 1 and for multiples of 16."""
    return lambda function: Kernel(triton.jit(function, do_not_specialize=numbers))
