"""Learn the inner learning rates together with θ: meta is {"params": θ, "rates": …}."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from metastep.core.checks import require_rate
from metastep.core.curvature import Curvature, exact
from metastep.core.entrywise import with_lr
from metastep.core.estimators import Estimator, unrolled
from metastep.core.method import Method
from metastep.core.optimizers import InnerOptimizer
from metastep.core.problems import accept_rates, with_rates
from metastep.core.rates import at_step
from metastep.core.registry import register
from metastep.core.trees import Tree, map_tree
from metastep.core.windows import InnerLoop, Problem, Steps


@register("method", "meta_sgd")
@dataclass(frozen=True, repr=False)
class MetaSGD(Method):
    """Learn an inner learning rate for each entry of each parameter (Li et al. 2017).

    Args:
        window: Steps that share a gradient, or a list with the length of each window.
        curvature: How second-order products are computed.

    Example:
        >>> import metastep as ms
        >>> ms.MetaSGD(window=4)
        MetaSGD(window=4)
    """

    window: Steps = 1
    curvature: Curvature = exact

    def problem(self, problem: Problem) -> Problem:
        return accept_rates(problem)

    def inner(self, inner: InnerOptimizer) -> InnerOptimizer:
        return with_lr(inner, _learned_rates)

    def init(self, params: Tree, inner: InnerOptimizer, lengths: Sequence[int]) -> Tree:
        require_rate(inner)
        return with_rates(params, inner.lr)  # type: ignore[attr-defined]


@register("method", "maml_pp")
@dataclass(frozen=True, repr=False)
class MAMLPP(Method):
    """Learn an inner learning rate for each tensor and step, and weigh the outer loss after every window (MAML++).

    Antoniou et al. 2019 anneal the weights to the last window.

    Args:
        weights: One for each window. They are equal if left out.
        window: Steps that share a gradient, or a list with the length of each window.
        curvature: How second-order products are computed.

    Example:
        >>> import metastep as ms
        >>> ms.methods.MAMLPP(weights=[0.25, 0.75])
        MAMLPP(weights=(0.25, 0.75))
    """

    weights: tuple[float, ...] | None = None
    window: Steps = 1
    curvature: Curvature = exact

    def problem(self, problem: Problem) -> Problem:
        return accept_rates(problem)

    def inner(self, inner: InnerOptimizer) -> InnerOptimizer:
        return with_lr(inner, _learned_rates_of_step)

    def init(self, params: Tree, inner: InnerOptimizer, lengths: Sequence[int]) -> Tree:
        require_rate(inner)
        return with_rates(params, inner.lr, sum(lengths))  # type: ignore[attr-defined]

    def estimator(self, loop: InnerLoop) -> Estimator:
        weights = [1 / len(loop.lengths)] * len(loop.lengths) if self.weights is None else self.weights
        return unrolled(loop, self.curvature, weights=weights)


def _learned_rates(meta: Tree, step: Any) -> Tree:
    return meta["rates"]


def _learned_rates_of_step(meta: Tree, step: Any) -> Tree:
    return map_tree(lambda rate: at_step(rate, step), meta["rates"])
