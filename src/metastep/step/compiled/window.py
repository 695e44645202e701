"""A window and its pullback as two compiled functions, which serve all windows that differ in values alone."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from metastep.step.compiled.graphs import (
    Draw,
    Traced,
    Values,
    hoist,
    is_tangent,
    made_of,
    placeholders,
    reached,
    set_outputs,
)
from metastep.step.compiled.inductor import AGAIN, Build, Run, cut
from metastep.step.compiled.products import choose_products
from metastep.step.compiled.tracing import Pair

Tensors = list[Tensor]


class WindowKind(NamedTuple):
    """Hold what computes windows of one kind.

    Args:
        first: The number of the first such window.
        before: How the optimizer's memory before it is nested, and the number of tensors of the state.
        memory: How the memory after it is nested.
        after: A state after it, whose values do not matter.
        ahead: Computes what depends on the number of steps alone.
        once: Computes what is the same in all windows of a call, of all inputs that are.
        held: Tensors that the loss holds.
        draws: Random numbers that it draws.
        nodes: Operations in both graphs.
        saved: Bytes that are kept for the way back.
        there: Computes the state after the window, and what is saved.
        inputs: Its inputs, among all that are given.
        back: Computes Λ before the window, of what is saved.
        along: Which Λ it takes.
        alive: Which results it gives. The others are zero.
    """

    first: int
    before: tuple[Any, int]
    memory: Any
    after: Tensors
    ahead: Callable[[Tensor], Sequence[Tensor]]
    once: Callable[[Tensors], Sequence[Tensor]]
    held: Tensors
    draws: list[Draw]
    nodes: int
    saved: int
    there: Run
    inputs: list[int]
    back: Run
    along: list[int]
    alive: list[int]

    def forward(self, given: Tensors, known: Sequence[Tensor]) -> tuple[Tensors, Tensors]:
        """Return the state after the window, and what is saved for the way back. `known` is what was computed ahead."""
        given = [*given, *self.held, *[draw() for draw in self.draws], *known]
        results = self.there([given[i] for i in self.inputs])
        return list(results[: len(self.after)]), list(results[len(self.after) :])

    def backward(self, saved: Tensors, along: Tensors, total: Tensors) -> Tensors:
        """Return Λ before the window, and add to `total` what the window hands on to θ."""
        found = self.back([*saved, *[along[i] for i in self.along]])
        size = self.before[1]
        if len(found) == len(self.alive) == size and self.alive[-1] == size - 1:
            return list(found)
        by_place = dict(zip(self.alive, found, strict=True))
        for i, x in by_place.items():
            if i >= size:
                total[i - size] = total[i - size] + x
        return [by_place[i] if i in by_place else torch.zeros_like(along[i]) for i in range(size)]


def compiled_window(
    k: int, before: tuple[Any, int], pair: Pair, given: Tensors, step: int, same: list[int], build: Build, swept: bool
) -> WindowKind:
    """Compile window k.

    Args:
        k: The number of the window.
        before: How the memory before it is nested, and the number of tensors of the state.
        pair: The window and its pullback as one graph.
        given: Its inputs.
        step: The place of the number of steps among them.
        same: The places of those that all windows of a call share.
        build: What makes a function of a graph.
        swept: Whether any window is pulled back.
    """
    found, (ahead, once) = pair.traced, _hoisted(pair.traced, step, same)
    names = [str(node.target) for node in placeholders(found.graph)]
    primals, tangents = [name for name in names if not is_tangent(name)], [name for name in names if is_tangent(name)]
    alive = _drop_zeros(found, pair.states)
    forward, backward = cut(found.graph, pair.states) if swept else (_alone(found.graph, pair.states), None)
    inputs = [primals.index(str(node.target)) for node in placeholders(forward)]
    taken = [str(node.target) for node in placeholders(backward)] if backward is not None else []
    along = [tangents.index(name) for name in taken if is_tangent(name)]
    # `given` is laid out as the graph has it: what was held, drawn, and known ahead or once follows in this order.
    examples = [*given, *found.held, *(draw() for draw in found.draws), *ahead(given[step]), *once(given)]
    run = build(forward, [examples[i] for i in inputs], pair.states)
    results = list(run([examples[i] for i in inputs]))
    after, saved = results[: pair.states], results[pair.states :]
    pull: Run = _nothing
    if backward is not None:
        pull = build(backward, [*saved, *[torch.zeros_like(after[i]) for i in along]], None)
    nodes = sum(len(graph.graph.nodes) for graph in (forward, backward) if graph is not None)
    size, (_, held, draws) = _bytes(saved, examples[before[1] :]), found
    return WindowKind(
        k, before, pair.memory, after, ahead, once, held, draws, nodes, size, run, inputs, pull, along, alive
    )  # fmt: skip


def _hoisted(found: Traced, step: int, same: list[int]) -> tuple[Values, Values]:
    """Take out of a window what is known before any call, and what is the same in all windows of a call."""
    inputs = placeholders(found.graph)
    held = inputs[len(inputs) - len(found.draws) - len(found.held) : len(inputs) - len(found.draws)] if same else []
    shared = [*(inputs[i] for i in same), *held]
    ahead = hoist(found, [inputs[step]], "ahead", lambda node: False)
    choose_products(found.graph, made_of(found.graph, shared))
    of_shared = hoist(found, shared, "once", _is_cheap)

    def once(given: Tensors) -> Sequence[Tensor]:
        return of_shared(*[given[i] for i in same], *(found.held if same else []))

    return ahead, once


def _is_cheap(node: Node) -> bool:
    """Whether a window computes it as fast as it would read it: a view, a mask, or more numbers than it is made of"""
    value, target = node.meta["val"], node.target
    sizes = [arg.meta["val"].numel() for arg in node.all_input_nodes if isinstance(arg.meta["val"], Tensor)]
    return target in AGAIN or getattr(target, "is_view", False) or value.numel() > max(sizes, default=inf)


def _drop_zeros(found: Traced, outputs: int) -> list[int]:
    """Drop the results that no Λ reaches, which are 0. Return the numbers of those that are left."""
    results: list[Any] = list(found.graph.graph.output_node().args[0])  # type: ignore[arg-type]
    by_along = reached(found.graph, is_tangent)
    alive = [i for i, result in enumerate(results[outputs:]) if result in by_along]
    set_outputs(found.graph, [*results[:outputs], *[results[outputs + i] for i in alive]])
    return alive


def _alone(graph: GraphModule, outputs: int) -> GraphModule:
    """The window without its pullback, and the inputs that it uses"""
    set_outputs(graph, list(graph.graph.output_node().args[0])[:outputs])  # type: ignore[arg-type]
    for node in placeholders(graph):
        if not node.users:
            graph.graph.erase_node(node)
    graph.recompile()
    return graph


def _nothing(args: Tensors) -> Tensors:
    return []


def _bytes(saved: Tensors, given: Tensors) -> int:
    """Return the bytes of what is saved and not there anyway."""
    known = {x.untyped_storage().data_ptr() for x in given}
    new = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in saved}
    return sum(size for place, size in new.items() if place not in known)
