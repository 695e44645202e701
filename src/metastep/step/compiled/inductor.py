"""What metastep uses of PyTorch's private parts: tracing, cutting and compiling graphs. There is no other such file.

trace    make_fx follows a function of lists of tensors through all of its derivatives: no dynamo, no autograd is left
cut      the min-cut partitioner of AOTAutograd splits a window and its pullback, and chooses what is saved between
build    inductor compiles a graph without guards: the caller looks at shapes first
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from metastep.core.derivatives import recorded
from metastep.step.compiled.graphs import Blank, Traced, is_random, lift_draws, lift_held, placeholders, refuse_writes

aten = torch.ops.aten

Run = Callable[[list[Tensor]], Sequence[Tensor]]
Build = Callable[[GraphModule, Sequence[Tensor], int | None], Run]


@cache
def unavailable(kind: str) -> str | None:
    """Return why nothing can be compiled here for this kind of device, or None."""
    if kind not in ("cpu", "cuda"):
        return "plans are compiled for CPUs and CUDA GPUs alone"
    try:
        from torch._functorch.partitioners import min_cut_rematerialization_partition  # noqa: F401
        from torch._inductor.compile_fx import compile_fx_inner  # noqa: F401
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch.fx.experimental.proxy_tensor import make_fx  # noqa: F401
        from torch.utils._triton import has_triton
    except ImportError as error:
        return f"PyTorch {torch.__version__} has its compiler elsewhere ({error})"
    if kind == "cuda":
        return None if has_triton() else "there is no Triton for this GPU; install triton"
    try:
        get_cpp_compiler()
    except Exception:  # its class has another name in each release
        return "there is no C++ compiler; install g++ or clang++"
    return None


# ---- trace


def traced(function: Callable[..., Any], primals: Sequence[Tensor], tangents: Sequence[Tensor] = ()) -> Traced:
    """Trace function(primals, tangents) for tensors of these shapes. Their values are not read."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch._inductor import lowering  # noqa: F401 - a decomposition of max-pooling looks there
    from torch.fx.experimental.proxy_tensor import make_fx

    # make_fx knows tensors by identity: one that is given twice would be one input.
    args = [[Blank.of(x)() for x in group] for group in (primals, tangents)]
    trace = make_fx(torch.func.functionalize(function), _decompositions(), "fake", _allow_non_fake_inputs=True)
    with torch.no_grad(), recorded(drawing=True), enable_python_dispatcher(), _quiet():
        graph = trace(*args)
    graph.graph.set_codegen(torch.fx.graph.CodeGen())
    graph.graph.eliminate_dead_code()
    refuse_writes(graph)
    _write_into_whole(graph)
    held, draws = lift_held(graph), lift_draws(graph)
    graph.recompile()
    return Traced(graph, held, draws)


def results_like(function: Callable[..., Sequence[Tensor]], *args: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors shaped as the results of a function, which computes nothing."""
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad(), recorded(drawing=True), _quiet():
        found = function(*[[mode.from_tensor(x.detach()) for x in group] for group in args])
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in found]


_WRITTEN = ("index_put", "_unsafe_index_put", "index_add", "index_copy", "scatter", "scatter_add", "scatter_reduce")


def _write_into_whole(graph: GraphModule) -> None:
    """Copy what is expanded before entries of it are written: inductor would write into all rows, which are one"""
    for node in [n for n in graph.graph.nodes if n.op == "call_function" and _name(n.target) in _WRITTEN]:
        value = node.args[0].meta["val"]
        if any(stride == 0 and size > 1 for stride, size in zip(value.stride(), value.shape, strict=True)):
            with graph.graph.inserting_before(node):
                node.args = (_contiguous(graph, node.args[0]), *node.args[1:])


def _name(target: Any) -> str:
    return str(getattr(target, "_schema", None) and target._schema.name).removeprefix("aten::")


def _contiguous(graph: GraphModule, node: Any) -> Any:
    """Add a copy of a node that is contiguous, and return it."""
    made = graph.graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    value = node.meta["val"]
    with value.fake_mode:
        made.meta["val"] = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    return made


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings of PyTorch's own tracer: they say nothing about the user's functions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _decompositions() -> dict[Any, Any]:
    """Return inductor's decompositions, without those that draw other random numbers than the operator."""
    from torch._inductor.decomposition import select_decomp_table

    return {op: rule for op, rule in select_decomp_table().items() if not is_random(op)}


# ---- cut

_COMPARISONS = [getattr(aten, name) for name in ("le", "lt", "ge", "gt", "eq", "ne")]
# A mask is stored element by element, which costs ten times what comparing again does.
AGAIN = {
    *(c.Scalar for c in _COMPARISONS),
    *(c.Tensor for c in _COMPARISONS),
    aten.permute.default,
    aten.expand.default,
}


def cut(graph: GraphModule, outputs: int) -> tuple[GraphModule, GraphModule]:
    """Split a graph behind its first `outputs` results, which do not depend on the tangents.

    Returns:
        forward: primals -> those results and what is saved; backward: what is saved, tangents -> the other results.
        Either has only the inputs that it uses, under their names.
    """
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch.utils.checkpoint import CheckpointPolicy

    for node in graph.graph.nodes:
        for tag in ("partitioner_tag", "autograd_backward"):  # the gradient of a window is forward here
            node.meta.pop(tag, None)
        if node.target in AGAIN:
            node.meta.update(recompute=CheckpointPolicy.MUST_RECOMPUTE, ac_graph_id=0)
    with _quiet():
        return min_cut_rematerialization_partition(graph, None, num_fwd_outputs=outputs)


# ---- build


def interpreted(graph: GraphModule, examples: Sequence[Tensor], contiguous: int | None = None) -> Run:
    """Run a graph operator by operator; what inductor does is measured and tested against it."""
    del examples, contiguous
    return lambda args: graph.forward(*args)


def built(graph: GraphModule, examples: Sequence[Tensor], contiguous: int | None = None) -> Run:
    """Compile a graph for tensors shaped and laid out as the examples.

    The first `contiguous` results are contiguous (all if None), the others as it pleases the compiler.
    """
    from torch import _guards
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner

    mode = next(node.meta["val"].fake_mode for node in placeholders(graph))
    for node, x in zip(placeholders(graph), examples, strict=True):
        node.meta["val"] = mode.from_tensor(x.detach(), static_shapes=True)
    fixed = len(graph.graph.output_node().args[0]) if contiguous is None else contiguous  # type: ignore[arg-type]
    _ask_for_contiguous(graph, fixed)
    fake = [node.meta["val"] for node in placeholders(graph)]
    with torch.no_grad(), _quiet(), _guards.tracing(_guards.TracingContext(mode)), config.patch(_OPTIONS):
        code: Any = compile_fx_inner(graph, fake)
        run: Run = getattr(code, "current_callable", None) or code
        is_kept = all(x.is_contiguous() for x in run(list(examples))[:fixed])
    return run if is_kept else lambda args: _straightened(run(args), fixed)


# Asserts of sizes at every call cost as much as a small kernel. Layouts are looked at once, and results are compared.
# Channels last would make kernels of normalisation and pooling twice as slow, since few channels fill no vector.
_OPTIONS: dict[str, Any] = {
    "size_asserts": False,
    "alignment_asserts": False,
    "nan_asserts": False,
    "layout_optimization": False,
}


def _straightened(found: Sequence[Tensor], fixed: int) -> list[Tensor]:
    """The compiler does not always keep to it"""
    return [*(x.contiguous() for x in found[:fixed]), *found[fixed:]]


def _ask_for_contiguous(graph: GraphModule, fixed: int) -> None:
    out = graph.graph.output_node()
    results: list[Any] = list(out.args[0])  # type: ignore[arg-type]
    for i, node in enumerate(results[:fixed]):
        value = node.meta["val"]
        if not value.is_contiguous():  # a result that is a view of a product would stay one
            with graph.graph.inserting_before(out):
                results[i] = _contiguous(graph, node)
    out.args = (results,)
    out.meta["user_visible_output_idxs"] = list(range(fixed))
    out.meta["original_output_strides"] = [
        torch.empty(node.meta["val"].shape, device="meta").stride() for node in results
    ]
    graph.graph.lint()
    graph.recompile()
