"""Graphs of autograd: which tensors they begin at, and which of their backwards cannot be differentiated again."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from metastep.errors import MetastepError

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
    """So that only a backward that cuts the graph returns what does not require grad"""
    if not torch.is_grad_enabled():
        return None
    return tuple(g.detach().requires_grad_() if g is not None and not g.requires_grad else g for g in by_outputs)
