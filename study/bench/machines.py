"""What differs between devices: how to wait for them, and how to tell what memory they took."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch


class Machine(Protocol):
    """Made just before the work: memory is what is taken above what was there then."""

    def wait(self) -> None: ...

    def peak_mib(self) -> float: ...


class TorchMachine:
    """GPU: the allocator's peak, CUDA graphs' pools included. CPU: the peak resident size, for a process of its own."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        else:  # PyTorch imports its compiler for the first optimizer: 125 MiB, less where a library brought parts of it
            torch.optim.SGD([torch.zeros(1)])
            forget_peak()
        self.before = self._now()

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def peak_mib(self) -> float:
        return (torch.cuda.max_memory_allocated() / 2**20 if self.on_gpu else peak_resident_mib()) - self.before

    def _now(self) -> float:
        return torch.cuda.memory_allocated() / 2**20 if self.on_gpu else peak_resident_mib()


def forget_peak() -> None:
    """Reading pictures can take more for a while than the work does. On Linux only: elsewhere a peak stays"""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_resident_mib() -> float:
    """Return this program's peak. On Linux, getrusage would begin with the parent's when it started this one."""
    status = Path("/proc/self/status")
    if status.exists():
        return (
            next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 2**10
        )
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
