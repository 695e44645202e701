"""Which states of an inner loop the reverse sweep stores, and which it computes again (activation checkpointing)."""

from collections.abc import Iterator

from metastep.core.optimizers import State
from metastep.core.trees import Tree
from metastep.core.windows import Checkpointed, InnerLoop, Window

STORED = 32  # windows: of 64, half of the states are stored, and half of the gradients evaluated again

# Segments: their windows, the state before them, and what was kept of each window, or [].
Storage = list[tuple[list[Window], State, list[Checkpointed]]]


def store(loop: InnerLoop, windows: list[Window], state: State, meta: Tree, every: int) -> tuple[Storage, State]:
    """Run the windows. Of all segments of `every` windows but the last, keep only their first state."""
    storage: Storage = []
    for i in range(0, len(windows), every):
        segment, start = windows[i : i + every], state
        if i + every < len(windows):
            state = loop.run(segment, start, meta)
            storage.append((segment, start, []))
        else:
            kept, state = loop.traverse(segment, start, meta)
            storage.append((segment, kept[0].state, kept))
    return storage, state


def rewind(loop: InnerLoop, storage: Storage, meta: Tree) -> Iterator[tuple[Window, Checkpointed]]:
    """Yield each window with the state before it, last to first. A state is freed once it was used."""
    while storage:
        windows, start, kept = storage.pop()
        kept = kept or loop.traverse(windows, start, meta)[0]
        for window in reversed(windows):
            yield window, kept.pop()
