"""Carry the inner optimizer's memory from task to task: it is a part of meta next to θ, and Reptile moves both."""

from dataclasses import dataclass
from math import log
from typing import Any

import torch

from metastep.core.optimizers import Adam, InnerOptimizer, State
from metastep.core.problems import accept_more
from metastep.core.registry import named, names
from metastep.core.trees import Tree, is_number, tree_leaves
from metastep.core.windows import Problem
from metastep.errors import MetastepError


@dataclass(frozen=True)
class Continued:
    """Adam whose memory carries over from task to task.

    Beside the moments it keeps β₂ᵗ, their bias correction. Unlike a count of steps, it can be averaged over tasks. The
    rates must not depend on the step.
    """

    inner: Adam

    def init(self, params: Tree) -> State:
        return State(params, (*self.inner.init(params).memory, tree_leaves(params)[0].new_ones(())))

    def advance(self, state: State, grad: Tree, meta: Tree, steps: int) -> State:
        *moments, power = state.memory
        beta = self.inner.betas[1]
        tiny = torch.finfo(power.dtype).tiny  # log(0) is infinite; by then the correction is 1
        step = power.clamp_min(tiny).log() / log(beta)
        params, memory, _ = self.inner.advance(State(state.params, tuple(moments), step), grad, meta, steps)
        return State(params, (*memory, beta**steps * power), state.step + steps)


def continued(inner: InnerOptimizer) -> InnerOptimizer:
    """Return the optimizer with a memory that holds all that the next task must know."""
    keeps = getattr(inner, "keeps", None)
    if keeps == "memory":
        return inner
    if keeps != "moments":
        known = [named("optimizer", name) for name in names("optimizer")]
        able = ", ".join(f"ms.{kind.__name__}" for kind in known if getattr(kind, "keeps", None))
        raise MetastepError(
            f"{type(inner).__name__} has no memory that could be carried from task to task. Use one of {able}, or "
            "leave keep_memory out, so that every task starts anew."
        )
    assert isinstance(inner, Adam)
    if not is_number(inner.betas[1]) or inner.betas[1] == 0:
        raise MetastepError(
            f"{inner!r} cannot keep its memory from task to task: its count of steps is kept as a power of betas[1]. "
            "Give betas[1] as a number above 0."
        )
    return Continued(inner)


def with_memory(params: Tree, inner: InnerOptimizer) -> dict[str, Tree]:
    """Return θ with the memory of an optimizer that has seen no task yet."""
    with torch.no_grad():
        memory = continued(inner).init(params).memory
    return {"params": params, "memory": {str(i): part for i, part in enumerate(memory)}}


def accept_memory(problem: Problem) -> Problem:
    """Return the same problem for meta = {"params": θ, "memory": …}. The optimizer continues from that memory."""

    def start(meta: Tree, task: Any) -> State:
        return State(problem.start(meta["params"], task), tuple(meta["memory"].values()))

    return accept_more(problem, start)
