"""Operations on traced graphs: what they hold and draw becomes inputs, what is known ahead is taken out."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten

# Operators that read the shape of their tensors alone; bernoulli with a number as probability is one more.
_BY_SHAPE = [
    "rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "randperm", "uniform", "normal_functional",
    "random", "exponential", "geometric", "cauchy", "log_normal",
]  # fmt: skip


class UntraceableError(Exception):
    """Says why something cannot be one graph."""


class Draw(NamedTuple):
    """Random numbers that a graph wants as an input: an operator, and what it is called with."""

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> Tensor:
        args = [arg() if isinstance(arg, Blank) else arg for arg in self.args]
        return self.operator(*args, **self.kwargs)  # type: ignore[no-any-return]


class Blank(NamedTuple):
    """Name a tensor whose shape alone an operator reads."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(x: Tensor) -> "Blank":
        return Blank(tuple(x.shape), x.stride(), x.dtype, x.device)

    def __call__(self) -> Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


class Traced(NamedTuple):
    """Hold a graph whose inputs are those of the function, then tensors that it held, then random numbers."""

    graph: GraphModule
    held: list[Tensor]
    draws: list[Draw]


def is_random(operator: Any) -> bool:
    """Return whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())


def refuse_writes(graph: GraphModule) -> None:
    for node in graph.graph.nodes:
        if node.op == "call_function" and getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            raise UntraceableError(f"a module or a loss writes into a tensor ({node.target})")


def placeholders(graph: GraphModule) -> list[Node]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def lift_held(graph: GraphModule) -> list[Tensor]:
    """Tensors that the function held become inputs, so that their values are read at every call"""
    lifted: dict[str, Node] = {}
    for node in [node for node in graph.graph.nodes if node.op == "get_attr"]:
        name = str(node.target)
        if name not in lifted:
            lifted[name] = _new_input(graph, f"primals_held_{len(lifted)}", node.meta["val"])
        node.replace_all_uses_with(lifted[name])
        graph.graph.erase_node(node)
    return [getattr(graph, name).detach() for name in lifted]


def lift_draws(graph: GraphModule) -> list[Draw]:
    """Random numbers become inputs: the caller draws them, as eager execution does"""
    draws: list[Draw] = []
    for node in [n for n in graph.graph.nodes if n.op == "call_function" and is_random(n.target)]:
        new = _new_input(graph, f"primals_drawn_{len(draws)}", node.meta["val"])
        draws.append(_draw_of(node))
        node.replace_all_uses_with(new)
        graph.graph.erase_node(node)
    if draws:
        graph.graph.eliminate_dead_code()
    return draws


def _draw_of(node: Node) -> Draw:
    operator: Any = node.target
    name = operator._schema.name.removeprefix("aten::")
    if not isinstance(node.meta["val"], Tensor) or (name not in _BY_SHAPE and operator is not aten.bernoulli.p):
        raise UntraceableError(f"{operator} draws random numbers by values that are computed")
    args = tuple(Blank.of(arg.meta["val"]) if isinstance(arg, Node) else arg for arg in node.args)
    return Draw(operator, args, dict(node.kwargs))


def _new_input(graph: GraphModule, name: str, value: Any) -> Node:
    with graph.graph.inserting_after(placeholders(graph)[-1]):
        node = graph.graph.placeholder(name)
    node.meta["val"] = value.detach()
    return node


def set_outputs(graph: GraphModule, results: Sequence[Any]) -> None:
    """Let the graph return these of its nodes, and drop what they do not need."""
    graph.graph.output_node().args = (list(results),)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def reached(graph: GraphModule, start: Callable[[str], bool]) -> set[Node]:
    """Return the nodes that depend on an input whose name `start` accepts."""
    found: set[Node] = {node for node in placeholders(graph) if start(str(node.target))}
    for node in graph.graph.nodes:
        if any(arg in found for arg in node.all_input_nodes):
            found.add(node)
    return found


def is_tangent(name: str) -> bool:
    return "tangents" in name


def hoist(found: Traced, place: int) -> tuple[Any, Traced]:
    """Take out of a graph what depends on its input at `place` alone, which is known before any call.

    Returns:
        A function of that input that gives the values, and the graph with these values as its last inputs.
    """
    graph, inputs = found.graph, placeholders(found.graph)
    ahead = [inputs[place]]
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.all_input_nodes and all(n in ahead for n in node.all_input_nodes):
            ahead.append(node)
    known = set(ahead)
    edge = [node for node in ahead[1:] if any(user not in known for user in node.users)]
    if not edge:
        return (lambda step: []), found
    own = Graph()
    copies: dict[Any, Any] = {}
    for node in ahead:
        copies[node] = own.node_copy(node, lambda n: copies[n])
    own.output([copies[node] for node in edge])
    first = GraphModule(graph, own)
    for i, node in enumerate(edge):
        with graph.graph.inserting_after(placeholders(graph)[-1]):
            new = graph.graph.placeholder(f"primals_ahead_{i}")
        new.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(new)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return first, found
