"""Refuse what cannot be meant, where it is given, and say what to write."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten_with_path

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
        raise MetastepError(
            f"meta is a {type(meta).__name__}, which averages over processes only what its own forward computed. Pass "
            "the module that it wraps, .module: ms.MetaStep averages by itself. To have .backward() average, wrap a "
            "module whose forward(tasks) returns gradient.loss(self.net, tasks), and call that."
        )
    if isinstance(meta, nn.Module):
        return parameters(meta)
    leaves = tree_leaves(meta)
    odd = next((_kind(leaf) for leaf in leaves if not _has_gradient(leaf)), None if leaves else "nothing")
    if odd:
        raise MetastepError(
            f"meta has {odd} where floating-point tensors are needed. Give a module, or a tree of tensors such as "
            "ms.parameters(net); make a tensor of a number with torch.tensor(…)."
        )
    if any(torch._C._functorch.is_gradtrackingtensor(leaf) for leaf in leaves):
        raise MetastepError(
            "torch.func differentiates around a MetaGradient, but would find 0: an estimate is a value. "
            "Use estimate.grad, or gradient.loss(meta, tasks).backward()."
        )
    return meta


def _has_gradient(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def _kind(leaf: Any) -> str:
    return str(leaf.dtype) if isinstance(leaf, Tensor) else type(leaf).__name__


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


def require_step(meta: Tree, optimizer: Any) -> None:
    """Refuse a MetaStep that would not move θ, or not all of it."""
    _require_optimizer(optimizer)
    held = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    leaves = tree_leaves(meta)
    if not any(leaf.requires_grad for leaf in leaves):
        raise MetastepError(
            "nothing in meta requires grad, so no update would move it. Make meta with gradient.init(…), or call "
            "requires_grad_() on the tensors to learn."
        )
    if missing := [i for i, leaf in enumerate(leaves) if id(leaf) not in held and leaf.requires_grad]:
        raise MetastepError(
            f"the optimizer does not hold {_names(meta, missing)}, which meta learns. Give it ms.trees.leaves(meta); "
            "freeze what is not to be learned with requires_grad_(False)."
        )
    if any(held[i].requires_grad for i in held.keys() - {id(leaf) for leaf in leaves}):
        raise MetastepError(
            "the optimizer holds tensors that are not in meta, and would never move them. Give it "
            "ms.trees.leaves(meta), and no more; or freeze them with requires_grad_(False)."
        )


def _require_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, Optimizer):
        name = optimizer.__name__ if isinstance(optimizer, type) else type(optimizer).__name__
        raise MetastepError(
            f"{name} is not an optimizer of torch.optim. θ is moved by one, such as "
            "torch.optim.Adam(ms.trees.leaves(meta), lr=1e-3); the inner optimizer belongs to the MetaGradient."
        )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise MetastepError(
            f"{type(optimizer).__name__} evaluates a closure several times an update, but a MetaStep has one "
            "meta-gradient for it. Call optimizer.step(closure) yourself. In the closure, zero the gradients, compute "
            "loss = gradient.loss(meta, tasks), call loss.backward(), and return the loss."
        )


def _names(meta: Tree, which: Iterable[int]) -> str:
    paths = [path for path, _ in tree_flatten_with_path(meta)[0]]
    named = ["".join(str(key) for key in paths[i]) or "the tensor" for i in which]
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")


def require_scheduler(scheduler: Any, optimizer: Optimizer) -> None:
    """Refuse a scheduler that would change the rates of another optimizer."""
    if scheduler is None:
        return
    if not callable(getattr(scheduler, "step", None)):
        raise MetastepError(
            f"scheduler = {scheduler!r} has no step(). Give one of torch.optim.lr_scheduler, made with the optimizer."
        )
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise MetastepError(
            "the scheduler belongs to another optimizer, so the rates of this one would never change. Make the "
            "scheduler with the optimizer that the MetaStep gets."
        )


def require_state(state: Any, leaves: list[Tensor], optimizer: Optimizer, scheduler: Any) -> None:
    """Refuse a saved state that belongs to another MetaStep, before anything of it is loaded."""
    parts = ("meta", "optimizer", "scheduler", "updates")
    if not isinstance(state, Mapping) or not all(part in state for part in parts):
        raise MetastepError(
            f"this is not what MetaStep.state_dict() returned: that has {', '.join(parts)}. Load the parameters of a "
            "module with module.load_state_dict."
        )
    if [(leaf.shape, leaf.dtype) for leaf in leaves] != [(saved.shape, saved.dtype) for saved in state["meta"]]:
        raise MetastepError("this state belongs to another θ: its tensors have other shapes or precisions.")
    if (state["scheduler"] is None) != (scheduler is None):
        then, now = ("without", "has one") if state["scheduler"] is None else ("with", "has none")
        raise MetastepError(
            f"this state was saved {then} a scheduler, but this MetaStep {now}. Make the MetaStep as it was then."
        )
    own = {name for group in optimizer.param_groups for name in group}
    if strange := {name for group in state["optimizer"]["param_groups"] for name in group} - own:
        raise MetastepError(
            f"this state was saved with another optimizer or scheduler: {type(optimizer).__name__} has no "
            f"{min(strange)!r} here. Make both as they were then."
        )
