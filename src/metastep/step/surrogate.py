"""A scalar whose `.backward()` adds the meta-gradient to `.grad`, for everything that is built on autograd."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from metastep.core.estimators import Estimate
from metastep.core.trees import Tree, tree_flatten, tree_leaves, tree_unflatten
from metastep.errors import MetastepError


def loss_of(estimate: Callable[[Tree], Estimate], meta: Tree) -> Tensor:
    """Return the outer loss, whose derivative by `meta` is the meta-gradient that `estimate` gives."""
    leaves, spec = tree_flatten(meta)
    return _Loss.apply(lambda detached: estimate(tree_unflatten(list(detached), spec)), *leaves)  # type: ignore[no-any-return, no-untyped-call]


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, estimate: Callable[[tuple[Tensor, ...]], Estimate], *leaves: Tensor) -> Tensor:
        found = estimate(tuple(leaf.detach() for leaf in leaves))
        ctx.save_for_backward(*leaves, *(grad.detach() for grad in tree_leaves(found.grad)))
        return found.loss.detach().clone()

    @staticmethod
    def backward(ctx: Any, *factors: Tensor) -> Any:
        # With create_graph=True the result depends on θ, by a function that refuses to be differentiated.
        return None, *_Scaled.apply(*factors, *ctx.saved_tensors)  # type: ignore[no-untyped-call]


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, factor: Tensor, *leaves_and_grads: Tensor) -> tuple[Tensor, ...]:
        grads = leaves_and_grads[len(leaves_and_grads) // 2 :]
        return tuple(factor.to(grad.dtype) * grad for grad in grads)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        raise MetastepError(
            "a meta-gradient has no second derivative, but gradient.loss(meta, tasks) was differentiated twice. Leave "
            "create_graph=True out, or write the outer derivative into the outer loss of the problem."
        )
