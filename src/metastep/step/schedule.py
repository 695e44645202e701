"""Which states of a long inner loop are kept: binomial checkpoints (Griewank and Walther 2000).

The sweep needs blocks of windows from the last to the first. Between kept states, blocks are run again.
"""

from collections.abc import Callable, Iterator
from functools import cache
from math import comb
from typing import Any

Kept = Callable[[], Any]  # gives a state back
Run = Callable[[int, int, Any], Any]  # (first block, block after the last, state before) -> state after


def last_to_first(
    blocks: int, state: Any, slots: int, run: Run, keep: Callable[[Any], Kept]
) -> Iterator[tuple[int, Any]]:
    """Yield each block with the state before it, the last block first.

    slots: states that may be kept at a time beside the first one.
    keep: store a state, and return what gives it back.
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
            stretches.append((first, middle, kept, slots))
            stretches.append((middle, end, keep(run(first, middle, kept())), slots - 1))


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
    """Where to keep the next state; what this costs is convex in the place"""

    def total(m: int) -> int:
        return m + cost(m, states) + cost(blocks - m, states - 1)

    low, high = 1, blocks - 1
    while high - low > 8:
        third = (high - low) // 3
        a, b = low + third, high - third
        low, high = (low, b) if total(a) <= total(b) else (a, high)
    return min(range(low, high + 1), key=total)
