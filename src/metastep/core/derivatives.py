"""Derivatives of functions of trees: by plain autograd, or by torch.func if the call is itself transformed.

vmap, compilation and tracing need torch.func. Otherwise autograd gives the same in fewer calls. It also supports what
only a plain backward does: autograd.Functions without setup_context, hooks, gradients inside a loss. The names are
those of torch.func.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.func
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from metastep.core.in_place import Again, Lent
from metastep.core.trees import Tree, map_tree, tree_flatten, tree_leaves, tree_unflatten, zeros_like
from metastep.errors import MetastepError

_recording: list[bool] = []  # whether random numbers may be drawn


@contextmanager
def recorded(drawing: bool = False) -> Iterator[None]:
    """Trace what runs inside, to run it again as it is.

    drawing: the recorder makes inputs of the random numbers.
    """
    _recording.append(drawing)
    try:
        yield
    finally:
        _recording.pop()


def is_recorded() -> bool:
    """Return whether calls are traced, compiled or captured: generators cannot be set back, and no number is known."""
    return bool(_recording) or torch.compiler.is_compiling() or is_captured()


def is_captured() -> bool:
    """Return whether a CUDA graph captures what runs: nothing may wait for the device."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


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
    if is_transformed() or not any(isinstance(x, Tensor) and x.is_inference() for x in tree_leaves(tree)):
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
        self.ran_again = False
        """Whether a module ran again in a backward inside."""
        self._lent: dict[int, list[Lent]] = {}

    def keep(self, lent: Lent) -> None:
        earlier = self._lent.setdefault(id(lent.inventory.module), [])
        if not earlier or (len(earlier) == 1 and lent.differs(earlier[0])):  # two are enough to refuse
            earlier.append(lent)

    def extend(self, inner: "Graph") -> None:
        for several in inner._lent.values():
            for lent in several:
                self.keep(lent)

    def in_place(self) -> AbstractContextManager[None]:
        """Enter around each backward: checkpoints and reversible nets call a module again there, and it must hold φ."""
        return Again(self._lent.values(), _note_again) if self._lent else nullcontext()


_followed: list[Graph] = []


class followed:  # noqa: N801 - a function to those who use it; a generator would take longer than a small step
    """Let autograd follow what is computed inside."""

    def __enter__(self) -> Graph:
        self._grad_before = torch.is_grad_enabled()
        self._graph = Graph(again=bool(_followed) and self._grad_before)
        _followed.append(self._graph)
        torch._C._set_grad_enabled(True)
        return self._graph

    def __exit__(self, *error: object) -> None:
        torch._C._set_grad_enabled(self._grad_before)
        _followed.pop()
        if _followed:
            _followed[-1].extend(self._graph)


def _note_again() -> None:
    for graph in _followed:
        graph.ran_again = True


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


# ---- graphs of autograd: which tensors they begin at, and which of their backwards cannot be differentiated again


_REMEDY = "Otherwise use curvature=ms.curvature.CentralDifference() or ms.FOMAML(), which need first derivatives only."


def nodes_of(values: Iterable[Tensor]) -> Iterator[Any]:
    """Yield the nodes behind some values, each once."""
    waiting = [value.grad_fn for value in values if value.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        new = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= new
        waiting += new


def leaves_of(values: Iterable[Tensor]) -> dict[int, Tensor]:
    """Return the tensors that the graph of some values begins at, by their ids."""
    values = list(values)
    found = {id(value): value for value in values if value.requires_grad and value.grad_fn is None}
    for node in nodes_of(values):
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
    return found


def require_followed(gradients: Iterable[Tensor]) -> None:
    """Refuse a backward that is differentiated once only: it leaves a node that fails, which nobody visits here."""
    if any(type(node).__name__ == "Error" for node in nodes_of(gradients)):
        raise MetastepError(
            "an autograd.Function has a backward that is once_differentiable, so the meta-gradient would lack its "
            "second derivatives. If backward is made of functions of torch, remove the decorator. " + _REMEDY
        )


class ConstantBackwards:
    """The autograd.Functions of a graph whose backward returns constants, though it is to be differentiated again.

    Such a backward computes with detached tensors, as that of torchdiffeq's odeint_adjoint does: the second derivative
    lacks its part.
    """

    def __init__(self, value: Tensor) -> None:
        self._names: set[str] = set()
        for node in nodes_of([value]):
            if isinstance(node, BackwardCFunction):
                node.register_prehook(_requiring_grad)
                node.register_hook(self._look(type(node).__name__.removesuffix("Backward")))

    def _look(self, name: str) -> Any:
        def look(by_inputs: Any, by_outputs: Any) -> None:
            numbers = [g for g in by_inputs if isinstance(g, Tensor) and g.is_floating_point()]
            if any(not g.requires_grad and bool(g.any()) for g in numbers):
                self._names.add(name)

        return look

    def refuse(self) -> None:
        if self._names:
            raise MetastepError(
                f"the backward of {min(self._names)}, an autograd.Function, returns constants, as if nothing depended "
                "on them: it computes with detached tensors or runs a backward of its own, as odeint_adjoint and "
                "reversible nets do. The meta-gradient would lack its second derivatives. Use the same without a "
                "backward of its own (odeint in place of odeint_adjoint). " + _REMEDY
            )


def _requiring_grad(by_outputs: Any) -> Any:
    """Let gradients require grad, so that only a backward that cuts the graph returns one that does not."""
    if not torch.is_grad_enabled():
        return None
    return tuple(g.detach().requires_grad_() if g is not None and not g.requires_grad else g for g in by_outputs)
