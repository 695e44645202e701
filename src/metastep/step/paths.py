"""The fastest way to the meta-gradient of a batch of tasks that serves the net, the method and the device.

Chains of convolution, BatchNorm, ReLU and max-pooling are differentiated by hand (`metastep.step.chain`): by Triton
kernels on a GPU, in PyTorch elsewhere. Everything else is mapped over tasks by `over_tasks`. Whichever is
taken says so, and why.
"""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from metastep.core.checks import require_meta, require_method, require_pictures
from metastep.core.curvature import exact
from metastep.core.dynamics import SGD, Adam, Dynamics, RMSprop
from metastep.core.estimators import Estimate, Estimator
from metastep.core.methods import fo_maml, imaml, maml, multi_step, reptile, truncated
from metastep.core.modules import parameters_of, theta_of
from metastep.core.problems import accuracy, few_shot, in_batches, params_of
from metastep.core.solvers import ConjugateGradient, conjugate_gradient
from metastep.core.tasks import over_tasks, require_chunk, require_finite, stack
from metastep.core.trees import Tree, dot, is_number, tree_leaves
from metastep.core.windows import Steps
from metastep.errors import MetastepError
from metastep.step.chain import plain
from metastep.step.chain.algebra import Operators
from metastep.step.chain.chain import Chain, NotAChainError, chain_of
from metastep.step.chain.problem import FusedJudge, dot_of_each, fused_over_tasks, fused_problem

Method = Callable[..., Estimator]

# Tasks that vmap takes at a time on a CPU. Conv4 with 64 filters, 5-way 1-shot with 15 queries, CPU ms of one thread
# for each task, by ones, twos, fours, eights: MAML 255, 174, 149, 142, Multi-step(4) 93, 67, 63, 66.
VMAP_CHUNK = 4


class MetaGradient(NamedTuple):
    """Called with (meta, tasks), as what `over_tasks` makes."""

    estimate: Callable[[Tree, Any], Estimate]
    estimator: Estimator  # of one task: what says where a result left the finite numbers
    path: str
    """How it is computed, and why not otherwise, in one line."""
    ways: int | None = None
    """By hand, classes that labels may be of."""

    def __call__(self, meta: Tree, tasks: Any) -> Estimate:
        return self.estimate(meta, tasks)


class NotFusedError(MetastepError):
    """Only `over_tasks` can do this; says why"""


class Asked(NamedTuple):
    """A method of `metastep.core.methods` for few-shot classification of square pictures of `size` with `module`"""

    module: nn.Module
    method: Method
    dynamics: Dynamics
    steps: Steps
    size: int
    options: dict[str, Any]
    batch: int | None = None  # pictures of the support in each window's mini-batch; all if left out
    shuffled: bool = False  # before every pass over the support, see `in_batches`

    @property
    def solver(self) -> Any:
        """iMAML's"""
        return self.options.get("solver") or conjugate_gradient()

    @property
    def parameter(self) -> Tensor:
        """Where it is, and its precision, are those of the computation"""
        return next(iter(parameters_of(self.module).values()))


def meta_gradient(
    module: nn.Module,
    method: Method,
    dynamics: Dynamics,
    steps: Steps,
    size: int,
    chunk_size: int | None = None,
    batch: int | None = None,
    **options: Any,
) -> MetaGradient:
    """The mean meta-gradient of few-shot classification of square pictures of `size`, by the fastest way.

    The module is read now: a layer that is changed afterwards is not seen.

    method: one of `metastep.core.methods`, such as `multi_step`; `options` are its own, such as window=4.
    batch: pictures of the support in each window's mini-batch, see `in_batches`; all if left out.
    module: where its parameters are is where it is computed. On a GPU, products are in float32, tf32 or bf16 as
    `torch.set_float32_matmul_precision` says: "highest", "high" or "medium".
    """
    require_chunk(chunk_size)
    require_method(method)
    problem = few_shot(module, cross_entropy, {"accuracy": accuracy})
    estimator = method(in_batches(problem, batch) if batch else problem, dynamics, steps, **options)
    asked = Asked(module, method, dynamics, steps, size, options, batch)
    found, parameter, theta = fastest(asked, estimator, chunk_size), asked.parameter, theta_of(module)

    def checked(meta: Tree, tasks: Any) -> Estimate:
        tasks = stack(tasks) if isinstance(tasks, list) else tasks
        if found.ways is not None:
            require_meta(meta)
            theta(params_of(meta))
            require_served_values(meta, tasks, parameter, found.ways)
        result = found(meta, tasks)
        require_finite(estimator, meta, tasks, result)
        return result

    return found._replace(estimate=checked)


def fastest(asked: Asked, estimator: Estimator, chunk_size: int | None = None) -> MetaGradient:
    """The same without a look whether the result is finite; `estimator` is the method on one task"""
    try:
        return fused(asked, estimator, chunk_size)
    except (NotFusedError, NotAChainError) as reason:
        return mapped(estimator, asked.parameter.device, chunk_size, str(reason))


def mapped(estimator: Estimator, device: torch.device, chunk_size: int | None, reason: str) -> MetaGradient:
    chunk = chunk_size or (VMAP_CHUNK if device.type == "cpu" else None)
    path = f"autograd, mapped over {f'{chunk} tasks' if chunk else 'all tasks'} at a time: {reason}"
    return MetaGradient(over_tasks(estimator, chunk, check_finite=False), estimator, path)


def fused(asked: Asked, estimator: Estimator, chunk_size: int | None) -> MetaGradient:
    require_served(asked)
    chain = chain_of(asked.module, asked.size)
    return by_hand(asked, estimator, chunk_size, chain, *operators_for(chain, asked.parameter))


def by_hand(
    asked: Asked, estimator: Estimator, chunk_size: int | None, chain: Chain, operators: Operators, how: str
) -> MetaGradient:
    of_all_tasks = estimator_by_hand(asked, chain, operators)
    estimate = fused_over_tasks(chain, of_all_tasks, chunk_size, apart=asked.method is reptile)
    return MetaGradient(estimate, estimator, f"derivatives by hand, {how}", chain.head.ways)


def estimator_by_hand(asked: Asked, chain: Chain, operators: Operators) -> Estimator:
    """Its tasks are one tensor, see `fused_problem`"""
    dynamics = asked.dynamics if operators is plain else in_one_pass(asked.dynamics)
    problem = fused_problem(chain, operators)
    if asked.batch:
        problem = in_batches(problem, asked.batch, axis=1, shuffled=asked.shuffled)
    return asked.method(problem, dynamics, asked.steps, **(asked.options | apart(asked)))


def judge_by_hand(asked: Asked) -> FusedJudge | None:
    """None where it cannot be by hand"""
    try:
        require_served(asked)
        chain = chain_of(asked.module, asked.size)
        operators, _ = operators_for(chain, asked.parameter)
    except (NotFusedError, NotAChainError):
        return None
    return FusedJudge(chain, estimator_by_hand(asked, chain, operators).loop)


def apart(asked: Asked) -> dict[str, Any]:
    """Options of the method by which tasks in one tensor stay apart"""
    return {"solver": replace(asked.solver, dot=dot_of_each)} if asked.method is imaml else {}


def require_served(asked: Asked) -> None:
    """All tasks are one vector here: what mixes its entries, or looks for them by name, cannot be served"""
    method, dynamics = asked.method, asked.dynamics
    if method not in (maml, multi_step, truncated, fo_maml, reptile, imaml):
        raise NotFusedError(f"{getattr(method, '__name__', method)} is not written out by hand")
    if asked.options.get("curvature", exact) is not exact:
        raise NotFusedError("another curvature was asked for")
    if type(asked.solver) is not ConjugateGradient or asked.solver.dot is not dot:
        raise NotFusedError("another solver was asked for, which may mix tasks")
    if type(dynamics) not in (SGD, Adam, RMSprop):
        raise NotFusedError(f"{type(dynamics).__name__} may look at several entries at once")
    if not all(is_number(rate) or (isinstance(rate, Tensor) and rate.dim() == 0) for rate in _rates(dynamics)):
        raise NotFusedError("inner rates are not one number each")


def require_served_values(meta: Tree, tasks: Any, parameter: Tensor, ways: int) -> None:
    """What the derivatives by hand count on, and a kernel would not complain about"""
    first = tree_leaves(meta)[0]
    if parameter.is_cuda and (first.device, first.dtype) != (parameter.device, parameter.dtype):
        raise MetastepError(
            f"meta is {first.dtype} on {first.device}, and the module was {parameter.dtype} on {parameter.device} when "
            "this was prepared. Move one to the other, and prepare it again."
        )
    for x, y in tasks:
        require_pictures(x, first)
        if bool(((y < 0) | (y >= ways)).any()):
            raise MetastepError(
                f"labels from {int(y.min())} to {int(y.max())}: they must be from 0 to {ways - 1}, one for each output "
                "of the head. Where some are to be left out of the loss, use over_tasks."
            )


def operators_for(chain: Chain, parameter: Tensor) -> tuple[Operators, str]:
    """What a chain is computed with where `parameter` is, in words too"""
    if parameter.dtype not in (torch.float32, torch.float64):
        raise NotFusedError(f"parameters are {parameter.dtype}")
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


def for_kernels(dynamics: Dynamics, params: Tensor) -> Dynamics:
    """The same dynamics, by one kernel if there is one for it and for where `params` is"""
    served = params.is_cuda and params.dtype == torch.float32 and find_spec("triton") is not None
    return in_one_pass(dynamics) if served else dynamics


def in_one_pass(dynamics: Dynamics) -> Dynamics:
    """SGD with momentum, or Adam, as one kernel, if their rates are numbers; for one float32 tensor on a GPU"""
    if not all(is_number(rate) for rate in _rates(dynamics)):
        return dynamics
    if type(dynamics) is SGD and dynamics.momentum:
        from metastep.step.chain.sgd import FusedSGD  # only here: Triton is for GPUs

        return FusedSGD(**vars(dynamics))
    if type(dynamics) is Adam and (dynamics.decoupled_weight_decay or not dynamics.weight_decay):
        from metastep.step.chain.adam import FusedAdam

        return FusedAdam(**vars(dynamics))
    return dynamics


def _rates(dynamics: Dynamics) -> list[Any]:
    return [getattr(dynamics, name, 0.0) for name in ("lr", "momentum", "weight_decay")]
