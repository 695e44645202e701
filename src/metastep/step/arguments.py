"""Refuse wrong arguments of the door where they are given, and say what to write."""

import inspect
from collections.abc import Mapping
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from metastep.core.checks import require_dynamics, require_problem
from metastep.core.method import Method
from metastep.core.options import call_of
from metastep.core.problems import FewShot
from metastep.core.registry import named, names
from metastep.core.trees import Tree, leaves_by_name, listed, tree_leaves
from metastep.errors import MetastepError, did_you_mean, warn

STEP = "Write ms.MetaStep(gradient, meta, torch.optim.Adam(ms.trees.leaves(meta), lr=1e-3))."
USAGE = "Write ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=0.1), steps=5)."


def require_parts(problem: Any, method: Any, inner: Any) -> None:
    """Refuse a MetaGradient that is made of something else, or in another order."""
    _require_problem(problem)
    _require_place(method, "a method")
    _require_made(method, "method")
    if not isinstance(method, Method):
        such = "must be a method such as ms.MAML() or ms.MultiStep(window=4)."
        raise MetastepError(f"method = {method!r} {such} {USAGE}")
    _require_place(inner, "an inner optimizer")
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
    _require_place(problem, "a problem")
    require_problem(problem)


def _require_place(given: Any, place: str) -> None:
    """Refuse a method or an inner optimizer in the place of another part."""
    kind = "a method" if isinstance(given, Method) else "an inner optimizer" if hasattr(given, "advance") else place
    if kind != place:
        raise MetastepError(f"{given!r} is {kind} where the {place.partition(' ')[2]} belongs. {USAGE}")


def _require_inner(inner: Any) -> None:
    if isinstance(inner, type) and issubclass(inner, Optimizer):
        registered = (named("optimizer", name) for name in names("optimizer"))
        ours = next((call_of(own) for own in registered if getattr(own, "original", None) is inner), "ms.SGD(lr=0.1)")
        raise MetastepError(
            f"{inner.__name__} is a class of torch.optim. Use {ours}. Or make one of the parameters of your module: "
            f"torch.optim.{inner.__name__}(net.parameters(), lr=0.1)."
        )
    _require_made(inner, "inner")
    if isinstance(inner, Number):
        raise MetastepError(
            f"{inner!r} is not an inner optimizer. If it is the learning rate, write ms.SGD(lr={inner!r})."
        )
    if not isinstance(inner, Optimizer):  # a MetaGradient makes an inner one of it
        require_dynamics(inner)


def _require_made(given: Any, part: str) -> None:
    """Refuse a class or a name, and say what to write in its place."""
    if isinstance(given, type) and (issubclass(given, Method) or hasattr(given, "advance")):
        raise MetastepError(f"{given.__name__} is the class. Call it: {call_of(given)}.")
    if isinstance(given, str):
        kind, such = _NAMED[part]
        known = names(kind)
        named_one = f"Give what it names: {call_of(named(kind, given))}." if given in known else ""
        nothing = f"It names nothing.{did_you_mean(given, known)} Give {such}."
        raise MetastepError(f"{part} = {given!r} is a name. {named_one or nothing}")


_NAMED = {
    "method": ("method", "a method itself, such as ms.MultiStep(window=4)"),
    "inner": ("optimizer", "an inner optimizer itself, such as ms.SGD(lr=0.1)"),
}


def require_counts(least: int = 1, what: str = "", **counts: Any) -> None:
    """Refuse what is not a whole number, or is below `least`; None is fine. `what` says what is counted."""
    for name, value in counts.items():
        if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and value >= least):
            raise MetastepError(f"{name} = {value!r} must be a whole number{what} that is at least {least}.")


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
    leaves = leaves_by_name(meta)
    if not any(leaf.requires_grad for leaf in leaves.values()):
        raise MetastepError(
            "nothing in meta requires grad, so no update would move it. Make meta with gradient.init(…), or call "
            "requires_grad_() on the tensors to learn."
        )
    if missing := [name for name, leaf in leaves.items() if id(leaf) not in held and leaf.requires_grad]:
        raise MetastepError(
            f"the optimizer does not hold {listed(missing)}, which meta learns. Give it ms.trees.leaves(meta); "
            "freeze what is not to be learned with requires_grad_(False)."
        )
    if any(held[i].requires_grad for i in held.keys() - {id(leaf) for leaf in leaves.values()}):
        raise MetastepError(
            "the optimizer holds tensors that are not in meta, and would never move them. Give it "
            "ms.trees.leaves(meta), and no more; or freeze them with requires_grad_(False)."
        )
    if frozen := [name for name, leaf in leaves.items() if id(leaf) in held and not leaf.requires_grad]:
        warn(
            f"{listed(frozen)} of meta does not require grad, so the optimizer leaves it as it is. Call "
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
