"""How a target is trained, and the state that training carries from one iteration to the next."""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from metastep.core.modules import parameters
from metastep.core.optimizers import SGD, Adam, InnerOptimizer, State
from metastep.core.options import Bound, require_number
from metastep.core.rates import Rate
from metastep.core.trees import Tree, map_tree, zeros_like
from metastep.errors import MetastepError, require_positive
from metastep.train.transfer.features import Tapped, buffers_of
from metastep.train.transfer.networks import Guidance
from metastep.train.transfer.packing import Packed

Kind = Literal["scratch", "transfer"]
Outer = Literal["accuracy", "total"]


@dataclass(frozen=True)
class Method:
    """How a target is trained: alone (scratch), or guided by a source (transfer).

    Baseline: steps T, window 1. Multi-step: window n. With steps = 0 or learned = False, θ stays where it started.
    transfer_lr multiplies the rate of the virtual transfer steps, and of nothing else.
    """

    kind: Kind = "transfer"
    steps: int = 2
    window: int = 1
    beta: float = 0.5
    learned: bool = True  # False: build the guidance with uniform weights
    outer: Outer = "accuracy"  # total: the first-order surrogate
    transfer_lr: float = 1.0
    optimizer: InnerOptimizer = SGD(0.1, 0.9, weight_decay=1e-4)  # noqa: RUF009 - it is frozen
    meta_lr: float = 1e-3
    meta_weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        _require_one_of(Kind, kind=self.kind)
        _require_one_of(Outer, outer=self.outer)
        if not hasattr(self.optimizer, "lr"):
            raise MetastepError(f"optimizer = {self.optimizer!r} has no rate lr for a schedule to move: use ms.SGD.")
        for name in ("beta", "meta_lr", "meta_weight_decay"):
            require_number(getattr(self, name), Bound(ge=0), name)
        require_positive(window=self.window, transfer_lr=self.transfer_lr)
        if self.steps < 0:
            raise MetastepError(f"steps = {self.steps}: virtual steps are counted from 0, which learns no weights.")

    @property
    def learns(self) -> bool:
        """Whether θ moves: without virtual transfer steps its meta-gradient is 0, and decay alone should not move it"""
        return self.kind == "transfer" and self.learned and self.steps > 0

    def inner(self, lr: Rate) -> Packed:
        return Packed(replace(self.optimizer, lr=lr))  # type: ignore[type-var]

    @property
    def meta_optimizer(self) -> Packed:
        return Packed(Adam(self.meta_lr, weight_decay=self.meta_weight_decay))


def _require_one_of(choices: Any, **option: str) -> None:
    for name, value in option.items():
        if value not in get_args(choices):
            raise MetastepError(f"{name} = {value!r}: choose one of {', '.join(get_args(choices))}.")


class TransferState(NamedTuple):
    target: State  # φ = {"target": …, "matching": …} by name, the optimizer's memory, the step (float64, 0-d)
    buffers: Tree  # running statistics of the target, by name
    meta: State  # θ by name, its Adam's moments and step


def initial_state(method: Method, target: Tapped, guidance: Guidance | None = None) -> TransferState:
    """Where training starts: copies of what the modules hold. Its structure stays as it is from then on."""
    matching = parameters(guidance.matching) if guidance else {}
    networks = parameters(guidance.networks) if guidance else {}
    params = _copied({"target": parameters(target.module), "matching": matching})
    none_yet = torch.zeros((), dtype=torch.float64, device=next(target.module.parameters()).device)
    return TransferState(
        _fresh(method.inner(0.0), params, none_yet),
        _copied(buffers_of(target.module)),
        _fresh(method.meta_optimizer, _copied(networks), none_yet.clone()),
    )


def _fresh(inner: Packed, params: Tree, step: Tensor) -> State:
    # torch.optim makes a velocity in the first step, v = ĝ; from a velocity of 0 the first step gives the same.
    velocity = (zeros_like(params),) if isinstance(inner.inner, SGD) and inner.inner.momentum else ()
    return State(params, inner.init(params).memory or velocity, step)


def _copied(tree: Tree) -> Tree:
    return map_tree(lambda x: x.detach().clone(), tree)
