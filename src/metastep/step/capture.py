"""A training step as one unit: compiled, captured in a CUDA graph and replayed without the host, or called as it is.

A step is a pure function (state, *inputs) -> (state, outputs). Captured, its state lives in tensors that are written
over, so that a replay continues where the last one ended; everything else about it stays the same.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from metastep.core.random import generators, set_generators
from metastep.core.trees import Tree, map_tree, tree_flatten, tree_leaves
from metastep.errors import first_line
from metastep.step.compiler.compiling import Compiled, Step, as_traced
from metastep.step.compiler.program_cache import Kin

# ---- CUDA streams for work that nothing waits for yet; on a CPU the work is done at once


@contextmanager
def aside(device: torch.device, name: str) -> Iterator[None]:
    """Run the block on a stream of this name, after all that was queued on the current one."""
    if device.type != "cuda":
        yield
        return
    side = _stream(device, name)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield


def wait_for(device: torch.device, name: str) -> None:
    """Let the current stream wait for the stream of this name."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).wait_stream(_stream(device, name))


@cache
def _stream(device: torch.device, name: str) -> torch.cuda.Stream:
    del name  # each has its own
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


Record = Callable[[Callable[[], None]], Callable[[], None]]  # what runs a function -> what runs it again
Recording = tuple[Tree, Tree, Callable[[], None]]  # inputs, outputs, and what makes these of those


class Unit:
    """`unit(state, *inputs)` is the step; `path` says how it is run, and why not otherwise."""

    def __init__(self, step: Step, path: str = "called as it is") -> None:
        self._step, self._path = step, path

    @property
    def path(self) -> str:
        return f"{self._step.path}; {self._path}" if isinstance(self._step, Compiled) else self._path

    @property
    def notice(self) -> str:
        """Say what the first call waits for, if that takes long."""
        return self._step.notice if isinstance(self._step, Compiled) else ""

    def __call__(self, state: Any, *inputs: Any) -> tuple[Any, Any]:
        return self._step(state, *inputs)


class Captured(Unit):
    """The step on fixed memory: what a call returns is written over by the next one.

    The state that goes in may be the one that came out, or any other of the same shapes (after a resume). Inputs of
    another shape, such as the last batch of an epoch, get a recording of their own. A step that cannot be recorded is
    called as it is from then on.
    """

    def __init__(self, step: Step, record: Record, path: str = "captured") -> None:
        super().__init__(step, path)
        self._record: Record | None = record
        self._state: Tree = None
        self._recordings: dict[Any, Recording] = {}

    def __call__(self, state: Any, *inputs: Any) -> tuple[Any, Any]:
        key = _shapes(inputs)
        if self._record is not None and key not in self._recordings:
            try:
                self._recordings[key] = self._recorded(self._record, state, map_tree(torch.clone, inputs))
            except RuntimeError as error:
                self._record, self._path = None, f"called as it is: {first_line(error)}"
        if self._record is None:
            return self._step(state, *inputs)
        own_inputs, outputs, replay = self._recordings[key]
        self._take(state)
        _write(own_inputs, inputs)
        replay()
        return self._state, map_tree(lambda each: each, outputs)  # a tree of the caller's own: it may be changed

    def _take(self, state: Tree) -> None:
        if self._state is None:
            self._state = map_tree(torch.clone, state)
        elif state is not self._state:
            _write(self._state, state)

    def _recorded(self, record: Record, state: Tree, inputs: Tree) -> Recording:
        self._take(state)
        before, random = map_tree(torch.clone, self._state), generators()  # recording may run the step
        outputs: list[Tree] = []

        def run() -> None:
            after, found = self._step(self._state, *inputs)
            if not outputs:
                outputs.append(map_tree(torch.clone, found))
            _write((self._state, outputs[0]), (after, found))

        try:
            replay = record(run)
        finally:  # also after an error: the caller may hold this state and continue from it
            _write(self._state, before)
            set_generators(random)
        return inputs, outputs[0], replay


def unit(
    step: Step, device: torch.device, draws_noise: bool = False, compile: bool = False, kin: Kin | None = None
) -> Unit:
    """The step as it is best run on `device`

    compile: it is called often enough. Then a GPU gets kernels for it; on a CPU, where the compiler would take longer
    than most runs, what it does twice is left out.
    kin: other steps of this process that what is compiled may serve.
    """
    if draws_noise:
        return Unit(step, "called as it is: it draws random numbers, which a recorded step would draw again")
    if device.type != "cuda":
        return Unit(Compiled(step, as_traced, kin), "operator by operator") if compile else Unit(step)
    return Captured(Compiled(step, kin=kin) if compile else step, recorded_by_cuda(), "captured in a CUDA graph")


def recorded_by_cuda() -> Record:
    """CUDA graphs that share one pool of memory: only one of them runs at a time.

    A run on its own stream, concurrent with others, is recorded there too: libraries keep one workspace for each
    stream, which the graphs of two runs must not share.
    """
    pool = torch.cuda.graph_pool_handle()

    def record(run: Callable[[], None]) -> Callable[[], None]:
        torch.cuda.synchronize()  # algorithms are chosen by time: what others have queued is not to run meanwhile
        current = torch.cuda.current_stream()
        stream = torch.cuda.Stream() if current == torch.cuda.default_stream() else current  # type: ignore[no-untyped-call]
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                for _ in range(2):  # libraries choose their algorithms, kernels are compiled
                    run()
        finally:  # what is done next, also after a failure, comes after what was queued here
            current.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            run()
        return graph.replay

    return record


def _write(own: Tree, other: Tree) -> None:
    """Copy other values into our memory: all tensors of a kind in one pass, since most are small."""
    by_kind: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for to, of in zip(tree_leaves(own), tree_leaves(other), strict=True):
        if to is not of:
            by_kind.setdefault(to.dtype, []).append((to, of))
    for pairs in by_kind.values():
        torch._foreach_copy_([to for to, _ in pairs], [of for _, of in pairs])


def _shapes(tree: Tree) -> Any:
    return tree_flatten(tree)[1], tuple((leaf.shape, leaf.dtype) for leaf in tree_leaves(tree))
