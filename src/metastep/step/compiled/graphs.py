"""Operations on traced graphs: what they hold and draw becomes inputs, what is known ahead is taken out."""

from collections.abc import Callable, Collection, Sequence
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


Values = Callable[..., Sequence[Tensor]]


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


def made_of(graph: GraphModule, given: Collection[Node]) -> set[Node]:
    """Return the nodes that depend on these inputs and on no others, and constants among them."""
    found = set(given)
    for node in graph.graph.nodes:
        if node.op == "call_function" and all(arg in found for arg in node.all_input_nodes):
            found.add(node)
    return found


def hoist(found: Traced, given: Sequence[Node], name: str, is_cheap: Callable[[Node], bool]) -> Values:
    """Take out of a graph what depends on some of its inputs alone.

    Args:
        found: The graph. Values that were taken out become its last inputs.
        given: The inputs.
        name: How the new inputs are called.
        is_cheap: Whether a node stays, since computing it costs no more than reading it.

    Returns:
        A function of `given` that returns the values.
    """
    graph, known, constant = found.graph, made_of(found.graph, given), made_of(found.graph, [])
    edge = _edge(graph, known, lambda node: node in constant or is_cheap(node))
    own, inputs = Graph(), dict[Node, Node]()
    copies = _copied(own, given, [node for node in graph.graph.nodes if node in known and node not in given])
    for node in edge:
        new = copies[node]
        if new not in inputs:
            inputs[new] = _new_input(graph, f"primals_{name}_{len(inputs)}", node.meta["val"])
        node.replace_all_uses_with(inputs[new])
    own.output(list(inputs))
    own.eliminate_dead_code()
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return GraphModule(graph, own).forward


def _copied(own: Graph, given: Sequence[Node], nodes: Sequence[Node]) -> dict[Node, Node]:
    """Copy inputs and nodes into another graph. Nodes that compute the same become one."""
    copies = {node: own.node_copy(node) for node in given}
    made: dict[str, Node] = {}
    for node in nodes:
        new = own.node_copy(node, lambda n: copies[n])
        copies[node] = made.setdefault(str((new.target, new.args, new.kwargs)), new)
        if copies[node] is not new:
            own.erase_node(new)
    return copies


def _edge(graph: GraphModule, known: set[Node], stays: Callable[[Node], bool]) -> list[Node]:
    """The known nodes that the rest of the graph reads, or those that they are made of where they stay in it"""
    staying: set[Node] = set()
    edge: list[Node] = []
    for node in reversed(graph.graph.nodes):
        is_read = any(user not in known or user in staying for user in node.users)
        if node in known and node.op == "call_function" and is_read:
            staying.add(node) if stays(node) else edge.append(node)
    return edge[::-1]
