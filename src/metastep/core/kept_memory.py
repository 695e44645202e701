"""An optimizer's memory that goes on from task to task: a part of meta beside θ, which Reptile moves as it moves θ."""

from dataclasses import dataclass
from math import log
from typing import Any

import torch

from metastep.core.optimizers import Adam, InnerOptimizer, RMSprop, State
from metastep.core.problems import accept_more
from metastep.core.trees import Tree, is_number, tree_leaves
from metastep.core.windows import Problem
from metastep.errors import MetastepError


@dataclass(frozen=True)
class Continued:
    """Adam whose memory carries over from task to task.

    Beside the moments it keeps β₂ᵗ, their bias correction: unlike a count of steps, it can be averaged over tasks. Its
    rates must not depend on the step.
    """

    inner: Adam

    def init(self, params: Tree) -> State:
        return State(params, (*self.inner.init(params).memory, tree_leaves(params)[0].new_ones(())))

    def advance(self, state: State, grad: Tree, meta: Tree, steps: int) -> State:
        *moments, lacking = state.memory
        beta = self.inner.betas[1]
        tiny = torch.finfo(lacking.dtype).tiny  # t goes no further: nothing is lacking any more
        step = lacking.clamp_min(tiny).log() / log(beta)
        params, memory, _ = self.inner.advance(State(state.params, tuple(moments), step), grad, meta, steps)
        return State(params, (*memory, beta**steps * lacking), state.step + steps)


def continued(dynamics: InnerOptimizer) -> InnerOptimizer:
    """The same dynamics, with a memory that says all that a next task has to know"""
    if isinstance(dynamics, Adam) and is_number(dynamics.betas[1]) and dynamics.betas[1] > 0:
        return Continued(dynamics)
    if isinstance(dynamics, Adam):
        raise MetastepError(
            f"{dynamics!r} cannot keep its memory from task to task: its count of steps is kept as a power of "
            "betas[1]. Give betas[1] as a number above 0."
        )
    if isinstance(dynamics, RMSprop):
        return dynamics
    raise MetastepError(
        f"{type(dynamics).__name__} has no memory that could go on from task to task: use Adam, AdamW or RMSprop, or "
        "let every task start anew."
    )


def with_memory(params: Tree, dynamics: InnerOptimizer) -> dict[str, Tree]:
    """θ beside the memory of an optimizer that has seen no task yet"""
    with torch.no_grad():
        memory = continued(dynamics).init(params).memory
    return {"params": params, "memory": {str(i): part for i, part in enumerate(memory)}}


def accept_memory(problem: Problem) -> Problem:
    """The same problem for meta = {"params": θ, "memory": …}; the optimizer goes on from that memory."""

    def start(meta: Tree, task: Any) -> State:
        return State(problem.start(meta["params"], task), tuple(meta["memory"].values()))

    return accept_more(problem, start)
