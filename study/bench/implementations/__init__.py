"""Ways to compute the same meta-iteration, by name. Each is a module of its own, imported only where it is used."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import torch

from study.bench.cases import METHODS, Case, Precision, Transfer, setting_of
from study.bench.machines import Machine, TorchMachine
from study.bench.workload import Step, pictures
from study.targets import OPTIMIZERS

BASIC = frozenset({"maml", "multi_step", "first_order"})
EVERY_METHOD = frozenset(method for method, _ in METHODS.values())
BY_KERNELS = frozenset({"maml", "multi_step", "first_order", "reptile", "imaml"})  # the methods that these have
PYTORCHS: frozenset[Precision] = frozenset({"fp32", "tf32", "fp64"})
JAXS = PYTORCHS - {"fp64"}  # which it would make float32, silently, unless all of a process is to be in float64


@dataclass(frozen=True)
class Implementation:
    """`step(case, device)` of its module builds one meta-iteration, ready to be called again and again."""

    module: str
    methods: frozenset[str] = BASIC
    transfer: str | None = None
    """Its module for meta-transfer, where it has one."""
    transfer_optimizers: frozenset[str] = frozenset(OPTIMIZERS)
    """Those of the target net that it has there."""
    package: str | None = None
    """What must be installed, besides what metastep needs."""
    options: Mapping[str, Any] = field(default_factory=dict)
    at_once: Literal["one", "chunk", "all", "own"] = "chunk"
    """How many tasks it computes together; own: as it likes, if nothing else is asked for."""
    precisions: frozenset[Precision] = PYTORCHS
    """In bf16 our kernels alone multiply, on a GPU, with everything else in float32."""
    alone: bool = False
    """Whether every row needs a process of its own, even on a GPU."""
    note: str = ""

    def serves(self, case: Case) -> bool:
        if case.precision not in self.precisions:
            return False
        if isinstance(setting := setting_of(case.setting), Transfer):
            has_optimizer = setting.config.inner_name in self.transfer_optimizers
            return self.transfer is not None and has_optimizer and case.precision != "bf16"
        return case.method in self.methods and (case.precision != "bf16" or case.method in BY_KERNELS)

    @property
    def missing(self) -> str | None:
        """Why it cannot run here, if so"""
        return f"{self.package} is not installed" if self.package and find_spec(self.package) is None else None

    def step(self, case: Case, device: torch.device) -> Step:
        step: Step = self._module(case).step(case, device, **self.options)
        return step

    def load(self, case: Case, device: torch.device) -> None:
        """Put the pictures where they will be wanted: they are no part of the work"""
        getattr(self._module(case), "load", pictures)(case, device)

    def machine(self, case: Case, device: torch.device) -> Machine:
        machine: Machine = getattr(self._module(case), "machine", TorchMachine)(device)
        return machine

    def _module(self, case: Case) -> Any:
        return import_module(f"{__name__}.{self.transfer if is_transfer(case) else self.module}")


def is_transfer(case: Case) -> bool:
    return isinstance(setting_of(case.setting), Transfer)


IMPLEMENTATIONS: dict[str, Implementation] = {
    "metastep": Implementation(
        "ours", EVERY_METHOD, transfer="ours_transfer", at_once="own", precisions=PYTORCHS | {"bf16"}
    ),
    "metastep-vmap": Implementation("ours", EVERY_METHOD, options={"mode": "vmap"}),
    "metastep-looped": Implementation("ours", EVERY_METHOD, options={"mode": "looped"}, at_once="one"),
    "hand-loop": Implementation(
        "hand_loop", transfer="hand_transfer", transfer_optimizers=frozenset({"sgd"}), at_once="one"
    ),
    "torch.func": Implementation("torch_func"),
    "jax": Implementation("jax_maml", package="jax", at_once="all", precisions=JAXS, alone=True),
    "jax-remat": Implementation(
        "jax_maml", package="jax", at_once="all", precisions=JAXS, alone=True, options={"remat": True}
    ),
    "higher": Implementation("with_higher", BASIC - {"multi_step"}, package="higher", at_once="one"),
    "learn2learn": Implementation(
        "with_learn2learn",
        BASIC - {"multi_step"},
        package="learn2learn",
        at_once="one",
        note="inner SGD without momentum and weight decay: it has neither",
    ),
    "torchopt": Implementation("with_torchopt", frozenset({"maml"}), package="torchopt", at_once="one"),
}
