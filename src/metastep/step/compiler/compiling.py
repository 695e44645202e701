"""A step compiled whole: traced through all of its derivatives to one list of operators, simplified, fused.

A step is a pure function (state, *inputs) -> (state, outputs) of tensors. Its trace has no gradients, duals or modules
left in it; inductor makes few kernels of many small operators. What is traced depends on shapes alone: parameters that
the step holds itself become inputs, so that inductor's cache, which stays between runs, serves other values of them.
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
from metastep.step.compiler.simplifying import merge_equal, simplified
from metastep.step.compiler.unpooling import max_pool2d_with_indices_backward

Step = Callable[..., tuple[Any, Any]]
Flat = Callable[..., Sequence[Tensor]]
Backend = Callable[[GraphModule, Sequence[Tensor]], Flat]

# Derivatives that forward mode takes apart: to find a gradient again in its own derivative, it is taken apart too.
_TAKEN_APART = ("nll_loss_backward", "nll_loss2d_backward", "_log_softmax_backward_data", "_softmax_backward_data")


def inductor(graph: GraphModule, examples: Sequence[Tensor]) -> Flat:
    from torch._inductor import compile
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    teach_inductor()
    fake = FakeTensorMode(shape_env=ShapeEnv())  # inductor's cache wants one, though all shapes are known
    shapes: list[Any] = [fake.from_tensor(example, static_shapes=True) for example in examples]
    # A BatchNorm's output reads five tensors. At inductor's default threshold of 4 it would be stored for its readers;
    # recomputing it costs no more, since most of them read its input anyway.
    options = {"triton.cudagraphs": False, "realize_reads_threshold": 8}
    return compile(graph, shapes, options=options)  # type: ignore[no-any-return]


def as_traced(graph: GraphModule, examples: Sequence[Tensor]) -> Flat:
    """Operator by operator; still nothing is done twice"""
    del examples
    return graph


class Compiled:
    """`step`, compiled when it is first called, or only traced; `path` says what became of it, `notice` what will.

    Inputs of another shape are traced anew, but compiled only if they are not smaller than others were, as the last
    batch of an epoch is: they come too rarely to pay for it, and the step is called as it is. Where compiling fails its
    trace is run, and where there is none, so is the step. What was made for one of its kin in this process is taken.
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
        """By the first way that works; where none does, the first one's reason is told"""
        began, reasons = time.perf_counter(), []
        for way, backend in self._ways.items():
            try:
                program = self._program((state, *inputs), backend)
                program(state, *inputs)  # some kernels are made, and some fail, when they are first used
            except Exception as error:  # tracers and compilers raise anything; an error of the step itself comes again
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
    """`step` for arguments shaped as `examples`"""
    with torch.no_grad(), _without_collecting():
        graph, held, spec = traced(step, examples)
        return Program(backend(graph, [*tree_leaves(examples), *held]), held, spec)


def traced(step: Step, examples: tuple[Any, ...]) -> tuple[GraphModule, list[Tensor], Any]:
    """(graph, held, spec): graph(*leaves of the arguments, *held) gives the leaves of a tree with this spec"""
    from torch._decomp import get_decompositions
    from torch._dispatch.python import enable_python_dispatcher  # BatchNorm then says which statistics it writes
    from torch.fx._lazy_graph_module import _use_lazy_graph_module
    from torch.fx.experimental.proxy_tensor import make_fx

    leaves, spec = tree_flatten(examples)
    found: list[Any] = []

    def flat(*leaves: Tensor) -> list[Tensor]:
        outputs, spec_of_outputs = tree_flatten(step(*tree_unflatten(list(leaves), spec)))
        found.append(spec_of_outputs)
        return outputs

    trace = partial(make_fx, tracing_mode="fake")
    lazily = _use_lazy_graph_module(True)  # no code is written for graphs that are not run
    with torch.no_grad(), enable_python_dispatcher(), recorded(), lazily:
        graph = trace(flat, _allow_non_fake_inputs=True)(*leaves)
        merge_equal(graph.graph)  # half is left to trace again
        held = _lift(graph)
        apart: Any = get_decompositions([getattr(torch.ops.aten, name) for name in _TAKEN_APART])
        apart[torch.ops.aten.max_pool2d_with_indices_backward.default] = max_pool2d_with_indices_backward
        pure = trace(torch.func.functionalize(graph), apart)(*leaves, *held)
        return simplified(pure), held, found[0]


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Graphs are many objects, all in use: looking for garbage among them takes a tenth of the time"""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _lift(module: GraphModule) -> list[Tensor]:
    """Tensors that the step held become the last inputs of its graph"""
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
