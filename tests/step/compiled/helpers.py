"""A MetaGradient whose plans are run operator by operator, and a recorder that does on a CPU what CUDA graphs do."""

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

import metastep as ms
from metastep.core.trees import map_tree, tree_leaves
from metastep.step.capture import Record
from metastep.step.compiled.engine import Compiled
from metastep.step.compiled.inductor import Build, interpreted


def compiling(*parts: Any, build: Build = interpreted, record: Record | None = None, **options: Any) -> ms.MetaGradient:
    """A MetaGradient with compile=True, whose graphs become functions by `build`"""
    gradient = ms.MetaGradient(*parts, compile=True, **options)
    at_once, memory = gradient.compiled._at_once, gradient.memory
    compiled = Compiled(gradient.estimator, gradient.chunk_size, at_once, memory, build, record)
    vars(gradient)["compiled"] = compiled
    return gradient


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record operators with the memory that they read and write, and replay them without Python's part."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        self._calls.append((function, map_tree(lambda x: x, args), kwargs or {}, found))  # lists may change later
        return found

    def replay(self) -> None:
        for function, args, kwargs, found in self._calls:
            again = function(*args, **kwargs)
            for own, new in zip(tree_leaves(found), tree_leaves(again), strict=True):
                if own is not None and own.data_ptr() != new.data_ptr():
                    own.copy_(new)


def taped(run: Callable[[], None]) -> Callable[[], None]:
    run()  # as a recorder warms up
    run()
    with Tape() as tape:
        run()
    return tape.replay
