"""Compile a whole step: trace it to one list of operators, simplify the list, and fuse it.

A step is a pure function (state, *inputs) -> (state, outputs) of tensors. Its trace contains no gradients, dual tensors
or modules. Inductor turns many small operators into few kernels. The trace depends on shapes alone: parameters that the
step holds become inputs. So inductor's cache on disk also serves other values of them.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from metastep.core.derivatives import recorded
from metastep.core.trees import tree_flatten, tree_leaves, tree_unflatten
from metastep.errors import first_line
from metastep.step.compiler.program_cache import Kin, Program, layouts, made_once
from metastep.step.compiler.side_by_side import teach_inductor
from metastep.step.compiler.simplifying import max_pool2d_with_indices_backward, merge_equal, simplified

Step = Callable[..., tuple[Any, Any]]
Flat = Callable[..., Sequence[Tensor]]
Backend = Callable[[GraphModule, Sequence[Tensor]], Flat]

# Forward mode decomposes these derivatives. Decompose them in the gradient too: it then appears in its own derivative.
_TAKEN_APART = ("nll_loss_backward", "nll_loss2d_backward", "_log_softmax_backward_data", "_softmax_backward_data")


def inductor(graph: GraphModule, examples: Sequence[Tensor]) -> Flat:
    """Compile a graph by inductor."""
    from torch._inductor import compile
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    teach_inductor()
    fake = FakeTensorMode(shape_env=ShapeEnv())  # inductor's cache needs one, although all shapes are known
    shapes: list[Any] = [fake.from_tensor(example, static_shapes=True) for example in examples]
    # The output of a BatchNorm reads five tensors. At inductor's default threshold of 4 it would be stored. Computing
    # it again costs no more, because most of its readers read its input anyway.
    options = {"triton.cudagraphs": False, "realize_reads_threshold": 8}
    return compile(graph, shapes, options=options)  # type: ignore[no-any-return]


def as_traced(graph: GraphModule, examples: Sequence[Tensor]) -> Flat:
    """Run the simplified trace operator by operator."""
    del examples
    return graph


class Compiled:
    """Compile `step` at its first call, or only trace it. `path` says what happened, `notice` what will happen.

    Inputs of a new shape are traced again. Smaller inputs than before, such as the last batch of an epoch, come too
    rarely to pay for compiling: for them the step is called directly. If compiling fails, the trace runs. If tracing
    fails, the step runs. A program that was made for a step of the same `Kin` in this process is used again.
    """

    def __init__(self, step: Step, backend: Backend = inductor, kin: Kin | None = None) -> None:
        self._step, self._kin = step, kin
        self._ways = {"traced": as_traced} if backend is as_traced else {"compiled": backend, "traced": as_traced}
        self._compiled: dict[Any, Step] = {}
        self._largest = 0
        self.path = next(iter(self._ways))
        compiles = "compiled, which takes minutes unless PyTorch's cache knows it"
        self.notice = compiles if self.path == "compiled" else "traced, which takes some seconds"

    def __call__(self, state: Any, *inputs: Any) -> tuple[Any, Any]:
        key, size = layouts((state, inputs)), sum(leaf.numel() for leaf in tree_leaves(inputs))
        if key not in self._compiled:
            pays = "compiled" not in self._ways or size >= self._largest
            self._compiled[key] = self._made(state, inputs) if pays else self._step
            self._largest = max(self._largest, size)
        return self._compiled[key](state, *inputs)

    def _made(self, state: Any, inputs: tuple[Any, ...]) -> Step:
        """Make the step by the first way that works. If none works, `path` has the reason of the first."""
        began, reasons = time.perf_counter(), []
        for way, backend in self._ways.items():
            try:
                program = self._program((state, *inputs), backend)
                program(state, *inputs)  # some kernels are compiled, and some fail, at their first use
            except Exception as error:  # tracers and compilers raise anything; the step raises its own errors again
                reasons.append(f"not {way}: {type(error).__name__}: {first_line(error)}")
            else:
                self.path = "; ".join([f"{way} in {time.perf_counter() - began:.0f} s", *reasons])
                return program
        self.path = reasons[0]
        return self._step

    def _program(self, examples: tuple[Any, ...], backend: Backend) -> Program:
        make = partial(compiled, self._step, examples, backend)
        return made_once(self._kin, backend, examples, make) if self._kin else make()


def compiled(step: Step, examples: tuple[Any, ...], backend: Backend = inductor) -> Program:
    """Return the step as a program for arguments with the shapes of `examples`."""
    with torch.no_grad(), _without_collecting():
        graph, held, spec = traced(step, examples)
        return Program(backend(graph, [*tree_leaves(examples), *held]), held, spec)


def traced(step: Step, examples: tuple[Any, ...]) -> tuple[GraphModule, list[Tensor], Any]:
    """Return (graph, held, spec): graph(*leaves of arguments, *held) gives the leaves of a tree with this spec."""
    from torch._decomp import get_decompositions
    from torch._dispatch.python import enable_python_dispatcher  # then BatchNorm declares the statistics it writes
    from torch.fx._lazy_graph_module import _use_lazy_graph_module
    from torch.fx.experimental.proxy_tensor import make_fx

    leaves, spec = tree_flatten(examples)
    found: list[Any] = []

    def flat(*leaves: Tensor) -> list[Tensor]:
        outputs, spec_of_outputs = tree_flatten(step(*tree_unflatten(list(leaves), spec)))
        found.append(spec_of_outputs)
        return outputs

    trace = partial(make_fx, tracing_mode="fake")
    lazily = _use_lazy_graph_module(True)  # generate no code for graphs that do not run
    with torch.no_grad(), enable_python_dispatcher(), recorded(), lazily:
        graph = trace(flat, _allow_non_fake_inputs=True)(*leaves)
        merge_equal(graph.graph)  # the second trace then has half of the operators
        held = _lift(graph)
        apart: Any = get_decompositions([getattr(torch.ops.aten, name) for name in _TAKEN_APART])
        apart[torch.ops.aten.max_pool2d_with_indices_backward.default] = max_pool2d_with_indices_backward
        pure = trace(torch.func.functionalize(graph), apart)(*leaves, *held)
        return simplified(pure), held, found[0]


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Turn off the garbage collector: searching the many objects of a graph takes a tenth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _lift(module: GraphModule) -> list[Tensor]:
    """Turn tensors that the step holds into the last inputs of its graph, and return them."""
    graph: Graph = module.graph
    held: dict[object, Node] = {}
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        if node.target not in held:
            with graph.inserting_after(last):
                last = graph.placeholder(f"held_{len(held)}")
            held[node.target] = last
        node.replace_all_uses_with(held[node.target])
        graph.erase_node(node)
    module.recompile()
    return [getattr(module, str(name)).detach() for name in held]
