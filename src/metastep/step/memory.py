"""How much an inner loop may keep: a budget in bytes becomes a schedule of graphs and states, run last to first."""

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from math import comb
from pathlib import Path
from typing import Any, NamedTuple

import torch

from metastep.errors import MetastepError

SHARE = 0.5  # of the free memory, if no budget is given
RUNS = 4  # of each block: more take longer than to store its state on disk
Memory = str | int | float | None
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_CGROUP = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


class Sizes(NamedTuple):
    """Hold the bytes of one window's graph and of one state."""

    graph: int
    state: int


class Schedule(NamedTuple):
    """Say what is kept: graphs of `block` windows at a time, and `slots` states between blocks."""

    block: int
    slots: int = 0
    on_disk: bool = False

    def told(self, windows: int) -> str:
        """Return the schedule in words."""
        if self.block >= windows:
            return "graphs of all windows kept"
        blocks = -(-windows // self.block)
        which = "states of all" if self.slots >= blocks - 1 else f"{self.slots + 1} states of {blocks}"
        where = "on disk" if self.on_disk else "in memory"
        return f"{which} blocks of {self.block} of {windows} windows kept {where}"


def schedule_for(budget: int, windows: int, sizes: Sizes) -> Schedule:
    """Return the fastest schedule that fits: graphs, else states, else binomial checkpoints, else states on disk."""
    graph, state = max(1, sizes.graph), max(1, sizes.state)
    if windows * graph <= budget:
        return Schedule(max(1, windows))
    block = max(1, min(windows, budget // (2 * graph)))  # half of the budget for graphs, and the rest for states
    blocks = -(-windows // block)
    slots = min(max(0, budget - block * graph) // state, blocks - 1)
    runs = cost(blocks, slots + 1)  # of blocks that are run again between the states in memory
    return Schedule(block, slots) if runs <= RUNS * blocks else Schedule(block, blocks - 1, on_disk=True)


def in_bytes(memory: Memory, device: torch.device) -> int:
    """Return a budget in bytes; of None, a share of what is free on the device."""
    if memory is None:
        return int(SHARE * free(device))
    if isinstance(memory, int | float) and not isinstance(memory, bool) and memory > 0:
        return int(memory)
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B?)\s*", str(memory).upper())
    if not found or found[2] not in _UNITS or float(found[1]) == 0:
        raise MetastepError(
            f'memory = {memory!r} is not an amount of memory. Write it as "4GB" or "500MB", or in bytes.'
        )
    return int(float(found[1]) * _UNITS[found[2]])


def free(device: torch.device) -> int:
    """Return the bytes that are free on a device; on a CPU, within the limit of the control group."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [size for size in (_of_machine(), of_group()) if size is not None]
    return min(found, default=2**32)


def _of_machine() -> int | None:
    try:
        line = next(row for row in Path("/proc/meminfo").read_text().splitlines() if row.startswith("MemAvailable"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        return _of_sysconf()


def _of_sysconf() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError, AttributeError):
        return None


def of_group(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return what the limit of a control group leaves, if there is one."""
    for limit, used in _CGROUP:
        try:
            return max(0, int((root / limit).read_text()) - int((root / used).read_text()))
        except (OSError, ValueError):  # another version of control groups, or no limit
            continue
    return None


def in_memory(state: Any) -> Callable[[], Any]:
    """Keep a state, and return what gives it back."""
    return lambda: state


class OnDisk:
    """Keep states in files of a temporary folder, each until nobody can ask for it."""

    def __init__(self) -> None:
        self._folder, self._number = Path(tempfile.mkdtemp(prefix="metastep-states-")), 0
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def __call__(self, state: Any) -> Callable[[], Any]:
        file = self._folder / f"{self._number}.pt"
        self._number += 1
        torch.save((state.params, state.memory), file)
        return _File(file, state._replace(params=[], memory=[]))


class _File:
    def __init__(self, file: Path, rest: Any) -> None:
        self._file, self._rest = file, rest

    def __call__(self) -> Any:
        params, memory = torch.load(self._file, weights_only=True)
        return self._rest._replace(params=params, memory=memory)

    def __del__(self) -> None:
        self._file.unlink(missing_ok=True)


# ---- which states of a long inner loop are kept: binomial checkpoints (Griewank and Walther 2000)


Kept = Callable[[], Any]  # gives a state back
Run = Callable[[int, int, Any], Any]  # (first block, block after the last, state before) -> state after


def last_to_first(
    blocks: int,
    state: Any,
    slots: int,
    run: Run,
    keep: Callable[[Any], Kept],
    reduced: Callable[[Any], Any] | None = None,
) -> Iterator[tuple[int, Any]]:
    """Yield each block with the state before it, the last block first.

    slots: states that may be kept at a time besides the first one.
    keep: store a state, and return what gives it back.
    reduced: leaves out of a state what is not needed where nobody continues from the block after it.
    """
    stretches = [(0, blocks, keep(state), slots)]
    del state
    while stretches:
        first, end, kept, slots = stretches.pop()
        if end - first == 1:
            yield first, kept()
        elif slots == 0:
            yield from ((block, run(first, block, kept())) for block in reversed(range(first, end)))
        else:
            middle = first + _split(end - first, slots + 1)
            after = keep(run(first, middle, kept()))
            if reduced and middle - first == 1 and keep is in_memory:
                kept = in_memory(reduced(kept()))
            stretches.append((first, middle, kept, slots))
            stretches.append((middle, end, after, slots - 1))
            del kept, after


def cost(blocks: int, states: int) -> int:
    """Return the fewest runs of a block that reverse so many, with so many states (the first one included)."""
    if blocks <= 1:
        return 0
    r = 1
    while comb(states + r, states) < blocks:
        r += 1
    return r * blocks - comb(states + r, states + 1)


@cache
def _split(blocks: int, states: int) -> int:
    """Return where to keep the next state. The cost is convex in the place."""

    def total(m: int) -> int:
        return m + cost(m, states) + cost(blocks - m, states - 1)

    low, high = 1, blocks - 1
    while high - low > 8:
        third = (high - low) // 3
        a, b = low + third, high - third
        low, high = (low, b) if total(a) <= total(b) else (a, high)
    return min(range(low, high + 1), key=total)
