"""Refuse wrong arguments of the door where they are given, and say what to write."""

import inspect
from collections.abc import Iterable, Mapping
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten_with_path

from metastep.core.checks import require_dynamics, require_problem
from metastep.core.method import Method
from metastep.core.options import call_of
from metastep.core.problems import FewShot
from metastep.core.registry import named, names
from metastep.core.trees import Tree, tree_leaves
from metastep.errors import MetastepError, did_you_mean, warn

STEP = "Write ms.MetaStep(gradient, meta, torch.optim.Adam(ms.trees.leaves(meta), lr=1e-3))."
USAGE = "Write ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=0.1), steps=5)."


def require_parts(problem: Any, method: Any, inner: Any) -> None:
    """Refuse a MetaGradient that is made of something else, or in another order."""
    _require_problem(problem)
    _require_method(method)
    _require_inner(inner)


def _require_problem(problem: Any) -> None:
    few_shot = "ms.few_shot(net, torch.nn.functional.cross_entropy)"
    if isinstance(problem, nn.Module):
        name = type(problem).__name__
        raise MetastepError(f"{name} is a module, not a problem. Make a problem of it and its loss: {few_shot}.")
    if isinstance(problem, type):
        raise MetastepError(f"{problem.__name__} is a class, not a problem. Make a problem of a module: {few_shot}.")
    if isinstance(problem, FewShot):
        raise MetastepError("FewShot describes a problem. Write ms.few_shot(module, loss), which makes the problem.")
    if isinstance(problem, Method) or hasattr(problem, "advance"):
        what = "a method" if isinstance(problem, Method) else "an inner optimizer"
        raise MetastepError(f"{problem!r} is {what} where the problem belongs. {USAGE}")
    require_problem(problem)


def _require_method(method: Any) -> None:
    if isinstance(method, Method):
        return
    if isinstance(method, type) and issubclass(method, Method):
        raise MetastepError(f"{method.__name__} is the class. Call it: {call_of(method)}.")
    if hasattr(method, "advance"):
        raise MetastepError(f"{method!r} is an inner optimizer where the method belongs. {USAGE}")
    if isinstance(method, str):
        raise MetastepError(f"method = {method!r} is a name. {_by_name('method', method)}")
    raise MetastepError(f"method = {method!r} must be a method such as ms.MAML() or ms.MultiStep(window=4). {USAGE}")


def _require_inner(inner: Any) -> None:
    if isinstance(inner, Method):
        raise MetastepError(f"{inner!r} is a method where the inner optimizer belongs. {USAGE}")
    if isinstance(inner, type) and issubclass(inner, torch.optim.Optimizer):
        ours = next((call_of(named("optimizer", name)) for name in names("optimizer") if _original(name) is inner), "")
        there_is = f"Use {ours}" if ours else "Use ms.SGD(lr=0.1)"
        raise MetastepError(
            f"{inner.__name__} is a class of torch.optim. {there_is}. Or make one of the parameters of your module: "
            f"torch.optim.{inner.__name__}(net.parameters(), lr=0.1)."
        )
    if isinstance(inner, type):
        raise MetastepError(f"{inner.__name__} is the class. Call it: {call_of(inner)}.")
    if isinstance(inner, str):
        raise MetastepError(f"inner = {inner!r} is a name. {_by_name('optimizer', inner)}")
    if isinstance(inner, Number):
        raise MetastepError(
            f"{inner!r} is not an inner optimizer. If it is the learning rate, write ms.SGD(lr={inner!r})."
        )
    if not isinstance(inner, Optimizer):  # a MetaGradient makes an inner one of it
        require_dynamics(inner)


def _by_name(kind: str, name: str) -> str:
    """Say what to write in place of a name."""
    known = names(kind)
    if name in known:
        return f"Give what it names: {call_of(named(kind, name))}."
    such = {"method": "ms.MultiStep(window=4)", "optimizer": "ms.SGD(lr=0.1)"}[kind]
    return f"It names nothing.{did_you_mean(name, known)} Give {_ARTICLE[kind]} itself, such as {such}."


_ARTICLE = {"method": "a method", "optimizer": "an inner optimizer"}


def _original(name: str) -> Any:
    return getattr(named("optimizer", name), "original", None)


def require_counts(**counts: Any) -> None:
    """Refuse a number of things that is not a whole number above 0; None is fine."""
    for name, value in counts.items():
        if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
            raise MetastepError(f"{name} = {value!r} must be a whole number that is at least 1.")


def require_keep(keep: Any) -> None:
    if keep not in (None, "params", "state"):
        raise MetastepError(f'keep = {keep!r} must be "params", "state" or None.')


def require_examples(problem: Any, tasks: Any) -> None:
    """Refuse a single task of few-shot learning in the place of stacked ones: its examples would be taken for tasks."""
    target = tasks.query[1] if isinstance(problem.made_of, FewShot) and _has_pairs(tasks) else None
    if isinstance(target, Tensor) and target.dim() == 1:
        raise MetastepError(
            f"tasks are stacked along their first axis, so that each of these {len(target)} has one target and no axis "
            "of examples. For a single task, give a list: [task]. For tasks of one example, add an axis: x[:, None]."
        )


def _has_pairs(tasks: Any) -> bool:
    query = getattr(tasks, "query", None)
    return isinstance(query, tuple | list) and len(query) == 2


def require_constant(tasks: Any) -> None:
    """Refuse tasks that require grad: the meta-gradient would not reach them; and tasks that vmap maps."""
    if any(isinstance(x, Tensor) and torch._C._functorch.is_batchedtensor(x) for x in tree_leaves(tasks)):
        raise MetastepError(
            "torch.func.vmap cannot map gradient.loss, which maps over tasks itself. Give it stacked tasks or a list. "
            "For the gradient of each task, map gradient.estimator."
        )
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
    if frozen := [i for i, leaf in enumerate(leaves) if id(leaf) in held and not leaf.requires_grad]:
        warn(
            f"{_names(meta, frozen)} of meta does not require grad, so the optimizer leaves it as it is. Call "
            "requires_grad_() on what is to be learned; give the optimizer the rest of meta alone."
        )


def _require_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, type):
        raise MetastepError(f"{optimizer.__name__} is the class. {STEP}")
    if not isinstance(optimizer, Optimizer):
        raise MetastepError(
            f"{type(optimizer).__name__} is not an optimizer of torch.optim, which moves θ. {STEP} "
            "The inner optimizer belongs to the MetaGradient."
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
    if isinstance(scheduler, type) or not callable(getattr(scheduler, "step", None)):
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
    parts = ("meta", "optimizer", "scheduler", "updates", "choices")
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
