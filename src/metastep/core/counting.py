"""What a call costs: gradients, second-order products, seconds, and the most bytes that its tensors took at once."""

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from metastep.core.trees import tree_leaves


@dataclass
class Counts:
    gradients: int = 0
    products: int = 0  # second-order: one Hessian-vector product together with its mixed part ∂²L/∂θ∂φ


_open: list[Counts] = []


@contextmanager
def counting() -> Iterator[Counts]:
    """Count what runs inside for one task, however many tasks there are."""
    counts = Counts()
    _open.append(counts)
    try:
        yield counts
    finally:
        _open.remove(counts)


@contextmanager
def uncounted() -> Iterator[None]:
    """Count nothing that runs inside: it is done for another task, or to look."""
    before = _open[:]
    _open.clear()
    try:
        yield
    finally:
        _open[:] = before


def count_gradient() -> None:
    for counts in _open:
        counts.gradients += 1


def count_product() -> None:
    for counts in _open:
        counts.products += 1


def fastest(repeats: int, estimate: Callable[..., Any], *given: Any) -> float:
    """Return the seconds that an estimate takes at best."""
    found = []
    for _ in range(repeats):
        begun = time.perf_counter()
        float(estimate(*given).loss)  # waits for a GPU
        found.append(time.perf_counter() - begun)
    return min(found)


# ---- peak memory of a call: the most bytes that its tensors took at once


T = TypeVar("T")


def peak_bytes(call: Callable[[], T], device: torch.device) -> tuple[T, int]:
    """Return the result of a call and its peak bytes: of the allocator on a GPU, of every tensor on a CPU."""
    if device.type == "cuda":
        return _on_gpu(call, device)
    with _LiveBytes() as live:  # the CPU allocator keeps no peak. Scratch memory of an operator is not seen
        result = call()
    return result, live.peak


def kept_bytes(call: Callable[[], Any]) -> int:
    """Return the bytes of tensors that are alive because of what a call returned, above what was there before."""
    with _LiveBytes() as live:
        result = call()
    now: int = live.now
    del result
    return now


def _on_gpu(call: Callable[[], T], device: torch.device) -> tuple[T, int]:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = call()
    torch.cuda.synchronize(device)
    return result, torch.cuda.max_memory_allocated(device) - before


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the storage of every tensor that an operator makes, until it is released."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self.sizes: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {storage._cdata for storage in _storages((args, kwargs))}
        out = function(*args, **(kwargs or {}))
        for storage in _storages(out):
            if storage._cdata not in self.sizes.keys() | given:
                self._follow(storage)
        return out

    def _follow(self, storage: torch.UntypedStorage) -> None:
        self.sizes[storage._cdata] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._release, storage._cdata)

    def _release(self, key: int) -> None:
        self.now -= self.sizes.pop(key)


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    tensors = (x for x in tree_leaves(tree) if isinstance(x, Tensor) and x.layout is torch.strided)
    return (x.untyped_storage() for x in tensors)
