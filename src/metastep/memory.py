"""Peak memory of a call: what tensors took at once, above what was there before."""

import os
from collections.abc import Callable
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

T = TypeVar("T")


def peak_bytes(call: Callable[[], T]) -> tuple[T, int]:
    """(result, peak of allocated bytes) on the GPU where there is one, else of PyTorch's CPU allocator"""
    return _on_gpu(call) if torch.cuda.is_available() else _on_cpu(call)


def _on_gpu(call: Callable[[], T]) -> tuple[T, int]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    return result, torch.cuda.max_memory_allocated() - before


def _on_cpu(call: Callable[[], T]) -> tuple[T, int]:
    """The CPU allocator keeps no peak, but the profiler sees every allocation and release in order."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would print when it starts and stops
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        result = call()
    events: list[Any] = list(profiler.profiler.kineto_results.events())
    memory = sorted((event for event in events if event.name() == "[memory]"), key=lambda event: event.start_ns())
    return result, max(accumulate((event.nbytes() for event in memory), initial=0))
