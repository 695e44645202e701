"""Derivatives of functions of trees: by plain autograd, or by torch.func if the call is itself transformed.

vmap, compilation and tracing need torch.func. Otherwise autograd gives the same in fewer calls. It also supports what
only a plain backward does: autograd.Functions without setup_context, hooks, gradients inside a loss. The names are
those of torch.func.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.func
from torch import Tensor

from metastep.core.graphs import require_followed
from metastep.core.in_place import Again, Lent
from metastep.core.trees import Tree, map_tree, tree_flatten, tree_leaves, tree_unflatten, zeros_like

_recording: list[bool] = []  # whether random numbers may be drawn


@contextmanager
def recorded(drawing: bool = False) -> Iterator[None]:
    """Trace what runs inside, to run it again as it is.

    drawing: whoever records makes inputs of the random numbers.
    """
    _recording.append(drawing)
    try:
        yield
    finally:
        _recording.pop()


def is_recorded() -> bool:
    """Return whether calls are traced, compiled or captured: generators cannot be set back, and no number is known."""
    capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    return bool(_recording) or torch.compiler.is_compiling() or capturing


def may_draw() -> bool:
    """Return whether random numbers can be drawn: a sweep that is recorded could not draw them again."""
    return _recording[-1] if _recording else not is_recorded()


def is_transformed() -> bool:
    """Return whether the caller is mapped, traced, compiled, or differentiated by torch.func."""
    return torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None or is_recorded()


def by_autograd() -> bool:
    """Return whether autograd may be used.

    It records nothing in inference mode. A graph that is built outside a derivative belongs to the caller, and
    torch.func leaves it alone.
    """
    free = bool(_followed) or not torch.is_grad_enabled()
    return free and not is_transformed() and not torch.is_inference_mode_enabled()


def followable(tree: Tree) -> Tree:
    """Return the tree with clones of tensors that were made in inference mode, which autograd cannot follow."""
    if is_transformed():
        return tree
    return map_tree(lambda x: x.clone() if isinstance(x, Tensor) and x.is_inference() else x, tree)


def grad(function: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    return lambda *args: grad_and_value(function, argnums)(*args)[0]


def grad_and_value(
    function: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    def both(*args: Any) -> tuple[Any, Any]:
        if not by_autograd():
            return torch.func.grad_and_value(function, argnums, has_aux)(*args)
        chosen = (argnums,) if isinstance(argnums, int) else argnums
        with followed() as graph:
            args = tuple(_watched(arg, graph.again) if i in chosen else arg for i, arg in enumerate(args))
            value = function(*args)
            found = _pulled([value[0] if has_aux else value], [None], tuple(args[i] for i in chosen), graph)
        return found[0] if isinstance(argnums, int) else found, _left(value, graph.again)

    return both


def vjp(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return function(*primals), and a function that pulls a cotangent back to them. It can be called once."""
    if not by_autograd():
        return torch.func.vjp(function, *primals)[:2]
    with followed() as graph:
        watched = tuple(_watched(primal, graph.again) for primal in primals)
        value = function(*watched)

    def pull(cotangent: Any) -> Any:
        return _pulled(tree_leaves(value), tree_leaves(cotangent), watched, graph)

    return _left(value, graph.again), pull


class Graph:
    """What autograd follows, and the tensors that modules had in place meanwhile."""

    def __init__(self, again: bool) -> None:
        self.again = again
        """Whether its derivative is to be differentiated again."""
        self._lent: dict[int, list[Lent]] = {}

    def keep(self, lent: Lent) -> None:
        earlier = self._lent.setdefault(id(lent.inventory.module), [])
        if all(lent.differs(other) for other in earlier):
            earlier.append(lent)

    def extend(self, inner: "Graph") -> None:
        for several in inner._lent.values():
            for lent in several:
                self.keep(lent)

    def in_place(self) -> AbstractContextManager[None]:
        """Enter around each backward: checkpoints and reversible nets call a module again there, and it must hold φ."""
        return Again(self._lent.values()) if self._lent else nullcontext()


_followed: list[Graph] = []


@contextmanager
def followed() -> Iterator[Graph]:
    """Let autograd follow what is computed inside."""
    graph = Graph(again=bool(_followed) and torch.is_grad_enabled())
    _followed.append(graph)
    try:
        with torch.enable_grad():
            yield graph
    finally:
        _followed.pop()
        if _followed:
            _followed[-1].extend(graph)


def keep_in_place(lent: Lent) -> None:
    """Say what a module has in place in a call, for the backward of that call."""
    if _followed:
        _followed[-1].keep(lent)


def _watched(tree: Tree, again: bool) -> Tree:
    """Return the same values as tensors to differentiate by."""
    return map_tree(lambda x: x.view_as(x) if again and x.requires_grad else x.detach().requires_grad_(), tree)


def _left(tree: Tree, again: bool) -> Tree:
    """Return the same values, detached unless they are to be differentiated again."""
    return tree if again else map_tree(lambda x: x.detach(), tree)


def _pulled(values: list[Tensor], along: list[Any], at: Tree, graph: Graph) -> Any:
    """Return Σ along · ∂value/∂at. It is zero for what no value depends on."""
    leaves, spec = tree_flatten(at)
    pairs = [pair for pair in zip(values, along, strict=True) if pair[0].requires_grad]
    if not pairs or not leaves:
        return zeros_like(at)
    outputs, directions = zip(*pairs, strict=True)
    with graph.in_place():
        found = torch.autograd.grad(outputs, leaves, directions, create_graph=graph.again, materialize_grads=True)
    if graph.again:
        require_followed(found)
    return tree_unflatten(list(found), spec)
