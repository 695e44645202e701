"""How the first updates of a training differ from the rest: a warm-up by first order, and a ramp of the inner rate.

Meta-gradients of the first updates can be a thousand times as long as later ones. They stay in the second moment of an
outer Adam, and nothing is learned for long. A warm-up or a ramp keeps them away, and `clip` bounds them.
"""

from dataclasses import replace
from typing import Any

import torch

from metastep.core.entrywise import with_lr
from metastep.core.methods import FOMAML
from metastep.core.trees import is_number
from metastep.errors import MetastepError
from metastep.step.arguments import require_counts
from metastep.step.gradient import MetaGradient


class Beginning:
    """Give the meta-gradient that an update uses, by the number of the update.

    Args:
        gradient: The meta-gradient after the beginning.
        warmup: The first updates, which use first order.
        ramp: Updates over which the inner rate rises linearly to its value.
        device: Where θ is.

    Raises:
        MetastepError: The method or the inner optimizer has no such beginning.
    """

    def __init__(self, gradient: MetaGradient, warmup: int, ramp: int, device: torch.device) -> None:
        require_counts(0, " of updates", warmup=warmup, ramp=ramp)
        self._gradient, self._warmup, self._ramp = gradient, warmup, ramp
        # A tensor that is written over: compiled plans and CUDA graphs read it at every update, and stay as they are.
        self._rate = torch.zeros((), dtype=torch.float64, device=device)
        rising = self._ramped if ramp else _same
        self._warms_up = first_order(gradient) if warmup else gradient
        self._rises, self._does_both = rising(gradient), rising(self._warms_up)

    def __call__(self, number: int) -> MetaGradient:
        """Return the meta-gradient of update `number`, counted from 0, and set its inner rate."""
        if number >= self._ramp:
            return self._warms_up if number < self._warmup else self._gradient
        self._rate.fill_(self._gradient.inner.lr * (number + 1) / self._ramp)
        return self._does_both if number < self._warmup else self._rises

    def _ramped(self, gradient: MetaGradient) -> MetaGradient:
        inner = gradient.inner
        if not is_number(getattr(inner, "lr", None)):
            raise MetastepError(f"ramp = {self._ramp}: {inner!r} has no rate lr that is one number. Leave ramp out.")
        ramped = replace(gradient, inner=with_lr(inner, self._rate), benchmark=False)
        if callable(getattr(ramped.loop.inner, "lr", None)):
            raise MetastepError(
                f"ramp = {self._ramp}: {gradient.method!r} learns its inner rates. Leave ramp out, and start from a "
                "lower rate."
            )
        return ramped


def first_order(gradient: MetaGradient) -> MetaGradient:
    """Return the same inner loop with first order's meta-gradient."""
    method, sweep = gradient.method, gradient.estimator.sweep
    if sweep is None or sweep.depth == 0:
        raise MetastepError(f"{method!r} has no sweep that first order could stand in for. Leave warmup out.")
    first: Any = FOMAML(window=getattr(method, "window", 1))
    problem, inner = method.problem(gradient.problem), method.inner(gradient.inner)
    return replace(gradient, problem=problem, inner=inner, method=first, benchmark=False)


def _same(gradient: MetaGradient) -> MetaGradient:
    return gradient
