"""Check what users give, and what their functions return, before it is used."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Integral
from typing import Any

import torch

from metastep.core.guards import require_scalar
from metastep.core.trees import Tree, difference, is_zero, shapes, tree_flatten, tree_leaves
from metastep.errors import MetastepError

Weights = Sequence[Any] | torch.Tensor
_AS_TENSORS = "Make tensors of the data first, with torch.as_tensor(…), and of a State's step too."


def require_problem(problem: Any) -> None:
    if missing := [name for name in ("start", "windows", "outer_loss") if not hasattr(problem, name)]:
        raise MetastepError(
            f"{type(problem).__name__} is not a problem: it has no {', '.join(missing)}. Make a problem of a module "
            "and its loss with ms.few_shot(module, loss), or of three functions with ms.Problem."
        )
    require_takes(problem.start, "start of a problem", "meta, task")
    whole = "For one loss in all windows, write ms.every_window(loss)."
    require_takes(problem.windows, "windows of a problem", "task, lengths", whole)
    require_takes(problem.outer_loss, "outer_loss of a problem", "params, meta, task")


def require_takes(function: Any, what: str, arguments: str, remedy: str = "Write it with these arguments.") -> None:
    """Refuse what cannot be called with these arguments; a function without a signature is accepted."""
    if not callable(function):
        raise MetastepError(f"{what} is {function!r}, but must be a function of ({arguments}). {remedy}")
    if torch.compiler.is_compiling():
        return
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # what a decorator made is what is called
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments.split(", "))
    except TypeError as error:
        raise MetastepError(f"{what} is called with ({arguments}), but takes {signature}: {error}. {remedy}") from None


def require_windows(windows: Any) -> list[Any]:
    if not isinstance(windows, list | tuple) or not all(hasattr(window, "loss") for window in windows):
        got = f"a {type(windows).__name__}" + (" of something else" if isinstance(windows, list | tuple) else "")
        raise MetastepError(
            f"windows(task, lengths) returned {got}, but must return a list of ms.Window(loss, batch, steps). For one "
            "loss in all windows, write ms.every_window(loss)."
        )
    return windows  # type: ignore[return-value]


def require_moved(moved: Any, before: Tree) -> tuple[Tree, Tree]:
    """Return (params, memory) of a user's step, and refuse a φ of other names or shapes."""
    if not (isinstance(moved, list | tuple) and len(moved) == 2):
        raise MetastepError(
            f"the step of a StepFunction returned a {type(moved).__name__}. Return (params, memory), where memory is "
            "() if there is none."
        )
    params, memory = moved[0], require_memory(moved[1])
    alike = (tree_flatten(params)[1], shapes(params)) == (tree_flatten(before)[1], shapes(before))
    found = None if alike else difference(before, params, "φ before it", "φ after it")
    if found:
        raise MetastepError(f"the step of a StepFunction changed φ: {found}. Return every parameter of params.")
    return params, memory


def require_memory(memory: Any) -> Tree:
    for leaf in tree_leaves(memory):
        if not (isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())):
            kind = str(leaf.dtype) if isinstance(leaf, torch.Tensor) else type(leaf).__name__
            raise MetastepError(
                f"the memory of a StepFunction has a leaf that is {kind}. Give a tree of floating-point tensors, or () "
                "if there is no memory. The argument t counts the steps."
            )
    return memory


def kept_in_shape(new: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Return a parameter after a step in its own precision, and refuse a larger shape. Both come from rates."""
    if new.shape != p.shape:
        raise MetastepError(
            f"a rate turned a parameter {tuple(p.shape)} into {tuple(new.shape)}. Give one number, or a tensor that "
            "broadcasts to the parameter's own shape."
        )
    return new.to(p.dtype)


def require_meta(meta: Any) -> None:
    remedy = "Pass ms.parameters(module), the parameters of a module by name. Make numbers tensors: torch.tensor(…)."
    require_data(meta, "meta", remedy)


def require_data(data: Any, what: str, remedy: str = _AS_TENSORS) -> None:
    for leaf in tree_leaves(data):
        if not isinstance(leaf, torch.Tensor):
            raise MetastepError(f"{what}: {type(leaf).__name__}, where tensors are needed. {remedy}")


def require_pictures(x: Any, like: torch.Tensor) -> None:
    require_data(x, "pictures")
    if x.dtype != like.dtype:
        raise MetastepError(
            f"pictures are {x.dtype}, but the parameters are {like.dtype}. Convert them with x.to({like.dtype}). "
            "Divide bytes by 255: pictures are in [0, 1]."
        )


def require_few_shot(loss: Any, metrics: Any) -> None:
    if isinstance(loss, type) and issubclass(loss, torch.nn.Module):
        raise MetastepError(f"loss = {loss.__name__} is the class. Call it: {loss.__name__}().")
    usual = "Pass one such as torch.nn.functional.cross_entropy."
    require_takes(loss, "the loss", "prediction, target", usual)
    if not isinstance(metrics, Mapping | None):
        raise MetastepError(
            f'metrics is a {type(metrics).__name__}. Give each metric a name, such as {{"accuracy": ms.accuracy}}.'
        )
    for name, metric in (metrics or {}).items():
        require_takes(metric, f"the metric '{name}'", "prediction, target")


def require_dynamics(dynamics: Any) -> None:
    if isinstance(dynamics, torch.optim.Optimizer):
        name = type(dynamics).__name__
        raise MetastepError(
            f"{name} of torch.optim changes parameters in place. Make a function of it: "
            "ms.optimizers.from_torch(optimizer, net). A MetaGradient does so itself."
        )
    if not all(callable(getattr(dynamics, name, None)) for name in ("init", "advance")):
        raise MetastepError(
            f"{dynamics!r} is not an inner optimizer: it needs init and advance. Use ms.SGD(lr=…), "
            "another of ms.optimizers, or an ms.StepFunction of your own."
        )


def require_rate(dynamics: Any) -> None:
    """Refuse an inner optimizer that has no learning rate to learn."""
    require_dynamics(dynamics)
    named = is_dataclass(dynamics) and any(field.name == "lr" for field in fields(dynamics))
    if not (named or hasattr(dynamics, "with_lr")):
        raise MetastepError(
            f"{type(dynamics).__name__} has no field `lr` that could be learned. Use ms.SGD or "
            "another of ms.optimizers. In an optimizer of your own, read the rate from meta and use ms.MultiStep."
        )


def require_no_decay(dynamics: Any, method: str) -> None:
    decay = getattr(dynamics, "weight_decay", 0.0)
    if not is_zero(decay):
        raise MetastepError(
            f"{method}: weight_decay = {decay} of the inner optimizer is missing from the implicit gradient. Set "
            "weight_decay=0, and add the penalty to the inner loss."
        )


def require_steps(steps: Any, window: Any) -> None:
    require_lengths(steps=steps, window=window)
    if isinstance(steps, Sequence) and window != 1:
        raise MetastepError(
            f"steps = {list(steps)} already gives the length of each window. Give one number of steps, or leave "
            f"window = {window} out."
        )
    if isinstance(window, Sequence) and sum(window) != steps:
        raise MetastepError(f"window = {list(window)} has {sum(window)} steps, not {steps}. Make the two agree.")


def require_lengths(**named: Any) -> None:
    """Each is a number of steps, or a list with the length of each window."""
    for name, value in named.items():
        listed = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        if not all(isinstance(n, Integral) and not isinstance(n, bool) for n in listed):
            raise MetastepError(f"{name} = {value!r} must be a whole number, or a list of them: one for each window.")
        if not listed or min(listed) < 1:
            raise MetastepError(f"{name} = {value!r} must be at least 1. A list needs at least one window.")


def require_one_each(weights: Weights, windows: Sequence[Any]) -> Weights:
    if len(weights) != len(windows):
        raise MetastepError(f"weights: {len(weights)} for {len(windows)} windows. Give one for each window.")
    return weights


def require_judgement(value: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return (loss, metrics) of what an outer loss returned."""
    pair = isinstance(value, tuple) and len(value) == 2
    loss, metrics = value if pair else (value, {})
    require_scalar(loss, "the outer loss")
    if not isinstance(metrics, Mapping):
        raise MetastepError(
            f"the outer loss returned metrics as a {type(metrics).__name__}. Return (loss, metrics), where metrics is "
            "a dict of tensors by name."
        )
    for name, metric in metrics.items():
        if not all(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(metric)):
            raise MetastepError(
                f"the metric '{name}' is a {type(metric).__name__}, but must be a tensor, since each task has its own. "
                "Leave .item() and float() out, or make a tensor with torch.as_tensor(…)."
            )
    return loss, metrics  # type: ignore[return-value]


def require_other_names(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    if "loss" in metrics:
        raise MetastepError("a metric is called 'loss', but that is the outer loss of each task. Choose another name.")
    return metrics
