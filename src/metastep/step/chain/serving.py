"""Decide whether hand-written derivatives serve a few-shot problem, and what computes them."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from metastep.core.checks import require_pictures
from metastep.core.curvature import exact
from metastep.core.entrywise import Entrywise
from metastep.core.estimators import Estimate
from metastep.core.method import Method
from metastep.core.modules import parameters
from metastep.core.optimizers import SGD, Adam, AdamW, InnerOptimizer
from metastep.core.problems import FewShot, accuracy, few_shot_of, in_batches, params_of
from metastep.core.solvers import ConjugateGradient
from metastep.core.trees import Tree, dot, is_number, tree_leaves
from metastep.core.windows import InnerLoop
from metastep.errors import MetastepError
from metastep.step.chain import plain
from metastep.step.chain.algebra import Operators
from metastep.step.chain.chain import Chain, NotAChainError, chain_of
from metastep.step.chain.problem import FusedJudge, dot_of_each, fused_problem, mean_over_tasks

if TYPE_CHECKING:
    from metastep.step.gradient import MetaGradient


class Served:
    """Hold a problem that the hand-written derivatives serve, for pictures of one size."""

    def __init__(self, gradient: "MetaGradient", chain: Chain, operators: Operators, how: str) -> None:
        self.gradient, self.chain, self.operators, self.path = gradient, chain, operators, f"derivatives by hand, {how}"
        self.few_shot: FewShot = gradient.problem.made_of

    @cached_property
    def loop(self) -> InnerLoop:
        """Return the inner loop of all tasks at once. Their parameters are one tensor."""
        gradient, problem = self.gradient, fused_problem(self.chain, self.operators)
        if gradient.batch:
            problem = in_batches(problem, gradient.batch, axis=1, shuffled=gradient.shuffled)
        inner = gradient.inner if self.operators is plain else in_one_pass(gradient.inner)
        return self._method.loop(problem, inner, gradient.steps)

    @property
    def _method(self) -> Method:
        """Return the method with a solver that keeps tasks apart."""
        method, solver = self.gradient.method, getattr(self.gradient.method, "solver", None)
        return replace(method, solver=replace(solver, dot=dot_of_each)) if solver else method  # type: ignore[type-var]

    @cached_property
    def estimate(self) -> Callable[[Tree, Any], Estimate]:
        """Return a function (meta, tasks) -> Estimate. It is made once: its first call reads the layout of θ."""
        gradient, estimator = self.gradient, self._method.estimator(self.loop)
        found = mean_over_tasks(self.chain, estimator, gradient.chunk_size, apart=compares_with_theta(gradient.method))

        def estimate(meta: Tree, tasks: Any) -> Estimate:
            estimate = found(meta, tasks)
            return estimate._replace(metrics=self._named(estimate.metrics), state=None)

        return estimate

    @property
    def judging(self) -> FusedJudge:
        """Return what computes loss and accuracy on the queries, at the end of the inner loop or after each window."""
        return FusedJudge(self.chain, self.loop)

    def judge(self, meta: Tree, tasks: Any) -> Estimate:
        """Return the outer loss and the metrics alone."""
        metrics = self.judging.at_the_end(meta, tasks)
        return Estimate(metrics["loss"].mean(), (), self._named(metrics))

    def _named(self, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
        wanted = self.few_shot.metrics or {}
        return {"loss": metrics["loss"], **dict.fromkeys(wanted, metrics["accuracy"])}

    def require_values(self, meta: Tree, tasks: Any) -> None:
        """Refuse values that a kernel would silently accept."""
        self.few_shot.theta(params_of(meta))
        first, parameter, ways = tree_leaves(meta)[0], parameter_of(self.few_shot), self.chain.head.ways
        if parameter.is_cuda and (first.device, first.dtype) != (parameter.device, parameter.dtype):
            raise MetastepError(
                f"meta is {first.dtype} on {first.device}, but the module is {parameter.dtype} on {parameter.device}. "
                "Move one to the other."
            )
        for x, y in tasks:
            require_pictures(x, first)
            if bool(((y < 0) | (y >= ways)).any()):
                raise MetastepError(
                    f"labels from {int(y.min())} to {int(y.max())} must be from 0 to {ways - 1}, one for each output "
                    "of the head. To leave some out of the loss, write a loss of your own."
                )


def served(gradient: "MetaGradient", size: int) -> Served | str:
    """Return what computes this for square pictures of `size`, or why nothing does."""
    try:
        few_shot = require_served(gradient)
        chain = chain_of(few_shot.module, size)
        return Served(gradient, chain, *operators_for(chain, parameter_of(few_shot)))
    except NotAChainError as reason:
        return str(reason)


def parameter_of(few_shot: FewShot) -> Tensor:
    """Return a parameter that is learned: its device and precision are those of the computation."""
    return next(iter(parameters(few_shot.module).values()))


def compares_with_theta(method: Method) -> bool:
    """Return whether the estimator subtracts φ from θ (Reptile), so that θ needs a task axis too."""
    return hasattr(method, "keep_memory")


def require_served(gradient: "MetaGradient") -> FewShot:
    """Refuse what mixes the entries of the one vector that all tasks are, or looks for them by name."""
    few_shot, method, inner = few_shot_of(gradient.problem), gradient.method, gradient.inner
    if few_shot is None:
        raise NotAChainError("the problem is not few_shot(net, loss)")
    if gradient.example_chunk_size is not None:
        raise NotAChainError("examples are taken in parts")
    if not is_cross_entropy(few_shot.loss):
        raise NotAChainError("the loss is not cross_entropy")
    if any(metric is not accuracy for metric in (few_shot.metrics or {}).values()):
        raise NotAChainError("a metric is not metastep.accuracy")
    if not method.entrywise:
        raise NotAChainError(f"{type(method).__name__} is not written out by hand")
    if getattr(method, "curvature", exact) is not exact:
        raise NotAChainError("another curvature was asked for")
    solver = getattr(method, "solver", None)
    if solver is not None and (type(solver) is not ConjugateGradient or solver.dot is not dot):
        raise NotAChainError("another solver was asked for, which may mix tasks")
    if not vars(type(inner)).get("entrywise"):  # a subclass says so itself
        raise NotAChainError(f"{type(inner).__name__} may look at several entries at once")
    if not all(is_number(rate) or (isinstance(rate, Tensor) and rate.dim() == 0) for rate in _rates(inner)):
        raise NotAChainError("inner rates are not one number each")
    return few_shot


def is_cross_entropy(loss: Any) -> bool:
    """Return whether a loss is cross-entropy: the function, or the module with its defaults."""
    if loss is cross_entropy:
        return True
    plain = nn.CrossEntropyLoss()
    told = ("weight", "ignore_index", "reduction", "label_smoothing")
    return type(loss) is nn.CrossEntropyLoss and all(getattr(loss, n) == getattr(plain, n) for n in told)


def operators_for(chain: Chain, parameter: Tensor) -> tuple[Operators, str]:
    """Return the operators for the device of `parameter`, and their name."""
    if parameter.dtype not in (torch.float32, torch.float64):
        raise NotAChainError(f"parameters are {parameter.dtype}")
    if not parameter.is_cuda or parameter.dtype == torch.float64:
        return plain, f"in PyTorch ({str(parameter.dtype).removeprefix('torch.')})"
    if find_spec("triton") is None:
        return plain, "in PyTorch: Triton is not installed"
    from metastep.step.chain.launch import TritonOperators, require_kernels  # only here: Triton is for GPUs

    try:
        require_kernels(chain)
    except NotAChainError as reason:
        return plain, f"in PyTorch: {reason}"
    precision = {"highest": "float32", "high": "tf32", "medium": "bf16"}[torch.get_float32_matmul_precision()]
    return TritonOperators("ieee" if precision == "float32" else precision), f"by Triton kernels ({precision})"


def for_kernels(dynamics: InnerOptimizer, params: Tensor) -> InnerOptimizer:
    """Return the inner optimizer as one kernel if there is one for it and for the device of `params`."""
    served = params.is_cuda and params.dtype == torch.float32 and find_spec("triton") is not None
    return in_one_pass(dynamics) if served else dynamics


def in_one_pass(dynamics: InnerOptimizer) -> InnerOptimizer:
    """Return SGD with momentum or Adam as one kernel, if the rates are numbers: for one float32 tensor on a GPU."""
    if not all(is_number(rate) for rate in _rates(dynamics)):
        return dynamics
    options = {field.name: getattr(dynamics, field.name) for field in fields(dynamics)}  # type: ignore[arg-type]
    if type(dynamics) is SGD and dynamics.momentum:
        from metastep.step.chain.sgd import FusedSGD  # only here: Triton is for GPUs

        return FusedSGD(**options)
    if not isinstance(dynamics, Adam) or type(dynamics) not in (Adam, AdamW):
        return dynamics
    if dynamics.weight_decay and not dynamics.decoupled_weight_decay:
        return dynamics
    from metastep.step.chain.adam import FusedAdam

    return FusedAdam(**options)


def _rates(dynamics: InnerOptimizer) -> list[Any]:
    if isinstance(dynamics, Entrywise):
        return [rate for _, rate, _ in dynamics.rates]
    return [getattr(dynamics, name, 0.0) for name in ("lr", "momentum", "weight_decay")]
