"""What a method is given, looked at before anything runs: the core itself is free of this."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch

from metastep.errors import MetastepError
from metastep.trees import is_number

Weights = Sequence[Any] | torch.Tensor


def require_problem(problem: Any) -> None:
    if missing := [name for name in ("start", "windows", "outer_loss") if not hasattr(problem, name)]:
        raise MetastepError(
            f"{type(problem).__name__} is no problem: it has no {', '.join(missing)}. Make one of a module and its "
            "loss with metastep.few_shot(module, loss), or of three functions with metastep.Problem."
        )


def require_dynamics(dynamics: Any) -> None:
    if isinstance(dynamics, torch.optim.Optimizer):
        name = type(dynamics).__name__
        raise MetastepError(
            f"{name} of torch.optim changes parameters in place, and cannot be differentiated through. Pass "
            f"metastep.{name}(lr) if there is one, or what from_optimizer(optimizer, parameters) makes of it."
        )
    if not all(callable(getattr(dynamics, name, None)) for name in ("init", "advance")):
        raise MetastepError(
            f"{dynamics!r} is no inner optimizer: it needs init and advance. Pass metastep.SGD(lr), Adam or RMSprop, "
            "or a StepFunction of your own."
        )


def require_rate(dynamics: Any, kinds: tuple[type, ...]) -> None:
    """One that could be learned"""
    require_dynamics(dynamics)
    if not isinstance(dynamics, kinds):
        raise MetastepError(
            f"{type(dynamics).__name__} has no rate that could be learned: use SGD, Adam, AdamW or RMSprop. In a "
            "dynamics of your own, read rates from meta, and use multi_step."
        )


def require_no_decay(dynamics: Any, method: str) -> None:
    decay = getattr(dynamics, "weight_decay", 0.0)
    if not (is_number(decay) and decay == 0):
        raise MetastepError(
            f"{method} with weight_decay = {decay} in the dynamics: the implicit gradient would not know of it. "
            "Set weight_decay=0, or add the penalty to the inner loss."
        )


def require_steps(steps: Any, window: Any) -> None:
    listed = isinstance(steps, Sequence)
    if not all(isinstance(n, Integral) for n in (window, *(steps if listed else [steps]))):
        raise MetastepError(f"steps = {steps}, window = {window}: inner steps are counted in whole numbers.")
    if window < 1:
        raise MetastepError(f"window = {window}: a window shares one gradient among at least 1 step.")
    if not listed and steps < 1:
        raise MetastepError(f"steps = {steps}: an inner loop takes at least 1 step.")
    if listed and (not steps or min(steps) < 1):
        raise MetastepError(f"steps = {list(steps)}: a list of windows needs at least one, each of at least 1 step.")
    if listed and window != 1:
        raise MetastepError(f"steps = {list(steps)} already says how long each window is: leave window = {window} out.")


def require_one_each(weights: Weights, windows: Sequence[Any]) -> Weights:
    if len(weights) != len(windows):
        raise MetastepError(f"{len(weights)} weights for {len(windows)} windows: the outer loss after each needs one.")
    return weights


def require_scalar(value: Any, what: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.dim() != 0:
        got = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise MetastepError(f"{what} must be one number for each task, not {got}: reduce it with .mean() or .sum().")
    return value
