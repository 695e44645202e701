"""Refuse what cannot be meant, where it is given, and say what to write."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from metastep.core.checks import require_dynamics, require_problem
from metastep.core.method import Method
from metastep.core.modules import parameters
from metastep.core.trees import Tree, tree_leaves
from metastep.errors import MetastepError

_ORDER = "Write ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=0.1), steps=5)."


def require_parts(problem: Any, method: Any, inner: Any) -> None:
    """Refuse a MetaGradient that is made of something else, or in another order."""
    if isinstance(problem, nn.Module):
        raise MetastepError(
            f"{type(problem).__name__} is a module, not a problem. Make a problem of it and its loss: "
            "ms.few_shot(net, torch.nn.functional.cross_entropy)."
        )
    require_problem(problem)
    _require_method(method)
    _require_inner(inner)


def _require_method(method: Any) -> None:
    if isinstance(method, Method):
        return
    if isinstance(method, type) and issubclass(method, Method):
        raise MetastepError(f"{method.__name__} is the class. Call it: ms.{method.__name__}().")
    if hasattr(method, "advance"):
        raise MetastepError(f"{method!r} is an inner optimizer where the method belongs. {_ORDER}")
    raise MetastepError(f"method = {method!r} must be a method such as ms.MAML() or ms.MultiStep(window=4). {_ORDER}")


def _require_inner(inner: Any) -> None:
    if isinstance(inner, Method):
        raise MetastepError(f"{inner!r} is a method where the inner optimizer belongs. {_ORDER}")
    if isinstance(inner, type):
        raise MetastepError(f"{inner.__name__} is the class. Call it: {inner.__name__}(lr=0.1).")
    require_dynamics(inner)


def require_counts(**counts: Any) -> None:
    """Refuse a number of things that is not a whole number above 0; None is fine."""
    for name, value in counts.items():
        if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
            raise MetastepError(f"{name} = {value!r} must be a whole number that is at least 1.")


def require_keep(keep: Any) -> None:
    if keep not in (None, "params", "state"):
        raise MetastepError(f'keep = {keep!r} must be "params", "state" or None.')


def tree_of(meta: Any) -> Tree:
    """θ as a tree: of a module, its parameters by name."""
    if isinstance(meta, nn.parallel.DistributedDataParallel | nn.DataParallel):
        meta = meta.module
    if isinstance(meta, nn.Module):
        return parameters(meta)
    if not tree_leaves(meta) or not all(isinstance(leaf, Tensor) for leaf in tree_leaves(meta)):
        odd = next((type(leaf).__name__ for leaf in tree_leaves(meta) if not isinstance(leaf, Tensor)), "nothing")
        raise MetastepError(
            f"meta has {odd} where tensors are needed. Give a module, or a tree of tensors such as "
            "ms.parameters(net); make a tensor of a number with torch.tensor(…)."
        )
    return meta


def require_order(meta: Tree, tasks: Any) -> None:
    """Tasks in the place of θ are an easy mistake: both are trees."""
    if isinstance(meta, Mapping) or not hasattr(meta, "support"):
        return
    raise MetastepError("meta is a Task: the arguments are (meta, tasks), in this order.")


def require_constant(tasks: Any) -> None:
    """Refuse tasks that require grad: the meta-gradient would not reach them."""
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in tree_leaves(tasks)):
        raise MetastepError(
            "a tensor of the tasks requires grad, but the loss is differentiated by meta alone. Put it into meta, and "
            "write the problem with ms.Problem so that its losses read it there; or detach it."
        )
