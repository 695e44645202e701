"""The methods, under the names people know. Each is a value: `MultiStep(window=4)`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from metastep.core.backprop import Reference
from metastep.core.checks import require_no_decay
from metastep.core.curvature import CentralDifference, Curvature, GaussianSmoothing, ZerothOrder, exact
from metastep.core.estimators import Estimate, Estimator, first_order, implicit, implicit_at, reptile_gradient, unrolled
from metastep.core.kept_memory import accept_memory, continued, with_memory
from metastep.core.learned_rates import MAMLPP, MetaSGD
from metastep.core.method import Method
from metastep.core.optimizers import InnerOptimizer, State
from metastep.core.options import Bound
from metastep.core.problems import accepts, adapt_only, proximal
from metastep.core.registry import register
from metastep.core.solvers import ConjugateGradient, Solver
from metastep.core.trees import Tree
from metastep.core.windows import InnerLoop, Problem, Steps, Window

__all__ = [
    "ANIL", "ESMAML", "FOMAML", "GGSMAML", "HFMAML", "IMAML", "MAML", "MAMLPP", "MetaSGD", "Method", "MultiStep",
    "Reference", "Reptile", "Truncated",
]  # fmt: skip


@register("method", "maml")
@dataclass(frozen=True, repr=False)
class MAML(Method):
    """Compute the exact meta-gradient: T gradients and T second-order products (Finn et al. 2017).

    Args:
        curvature: How second-order products are computed.

    Example:
        >>> import metastep as ms
        >>> ms.MAML()
        MAML()
    """

    entrywise = True
    curvature: Curvature = exact


@register("method", "multi_step")
@dataclass(frozen=True, repr=False)
class MultiStep(Method):
    """Evaluate one gradient for a window of steps: T/n gradients and T/n second-order products (Kim et al. 2020).

    Args:
        window: Steps that share a gradient, or a list with the length of each window.
        curvature: How second-order products are computed.

    Example:
        >>> import metastep as ms
        >>> ms.MultiStep(window=4)
        MultiStep(window=4)
    """

    entrywise = True
    window: Steps
    curvature: Curvature = exact


@register("method", "truncated")
@dataclass(frozen=True, repr=False)
class Truncated(Method):
    """Stop the reverse sweep after the last `depth` windows.

    Args:
        depth: Windows that are differentiated.
        window: Steps that share a gradient, or a list with the length of each window.
        curvature: How second-order products are computed.

    Example:
        >>> import metastep as ms
        >>> ms.methods.Truncated(depth=2)
        Truncated(depth=2)
    """

    is_exact = False
    entrywise = True
    depth: Annotated[int, Bound(ge=1)]
    window: Steps = 1
    curvature: Curvature = exact

    def estimator(self, loop: InnerLoop) -> Estimator:
        return unrolled(loop, self.curvature, self.depth)


@register("method", "fo_maml")
@dataclass(frozen=True, repr=False)
class FOMAML(Method):
    """Use the gradient at the final φ as the meta-gradient: no second-order product (Finn et al. 2017).

    If θ is not the starting point of φ, first order sees only the part of θ that appears in the outer loss. Otherwise
    the gradient is zero, and a warning says so. Use MultiStep, MAML, HFMAML or GGSMAML for such a θ.

    Args:
        window: Steps that share a gradient, or a list with the length of each window.

    Example:
        >>> import metastep as ms
        >>> ms.FOMAML()
        FOMAML()
    """

    is_exact = False
    entrywise = True
    window: Steps = 1

    def estimator(self, loop: InnerLoop) -> Estimator:
        return first_order(loop)


@register("method", "reptile")
@dataclass(frozen=True, repr=False)
class Reptile(Method):
    """Use θ − φ_{T+1} as the meta-gradient: an outer SGD of rate ε moves θ by ε towards φ_{T+1} (Nichol et al. 2018).

    Args:
        window: Steps that share a gradient, or a list with the length of each window.
        keep_memory: Carry the inner optimizer's memory from task to task, as the published code does. θ then holds it
            with the parameters, and the outer optimizer must be SGD with a rate of at most 1. Any other could make
            second moments negative.

    Example:
        >>> import metastep as ms
        >>> ms.Reptile(keep_memory=True)
        Reptile(keep_memory=True)
    """

    is_exact = False
    needs_start = True
    entrywise = True
    window: Steps = 1
    keep_memory: bool = False

    def problem(self, problem: Problem) -> Problem:
        return accept_memory(problem) if self.keep_memory else problem

    def inner(self, inner: InnerOptimizer) -> InnerOptimizer:
        return continued(inner) if self.keep_memory else inner

    def init(self, params: Tree, inner: InnerOptimizer, lengths: Sequence[int]) -> Tree:
        return with_memory(params, inner) if self.keep_memory else params

    def estimator(self, loop: InnerLoop) -> Estimator:
        return reptile_gradient(loop, self.keep_memory)


@register("method", "imaml")
@dataclass(frozen=True, repr=False)
class IMAML(Method):
    """Differentiate implicitly at the solution: (I + H/λ)⁻¹ ∇L(φ*), λ = strength (Rajeswaran et al. 2019).

    Args:
        strength: λ. φ* minimises the inner loss + ½λ‖φ − θ‖².
        solver: How the linear system is solved.
        window: Steps that share a gradient, or a list with the length of each window.
        curvature: How second-order products are computed.
        free: Leave λ out of the inner loop, as the published code does. φ* then minimises the inner loss alone, and λ
            only damps the solver.

    Example:
        >>> import metastep as ms
        >>> ms.IMAML(strength=0.5, solver=ms.solvers.ConjugateGradient(steps=10))
        IMAML(strength=0.5, solver=ConjugateGradient(steps=10))
    """

    is_exact = False
    entrywise = True
    strength: Annotated[float, Bound(gt=0)] = 2.0
    solver: Solver = ConjugateGradient()  # noqa: RUF009 - it is frozen
    window: Steps = 1
    curvature: Curvature = exact
    free: bool = False

    def problem(self, problem: Problem) -> Problem:
        return problem if self.free else proximal(problem, self.strength)

    def inner(self, inner: InnerOptimizer) -> InnerOptimizer:
        require_no_decay(inner, "iMAML")
        return inner

    def estimator(self, loop: InnerLoop) -> Estimator:
        return implicit(loop, self.solver, self.curvature, self._held(loop))

    def at(self, loop: InnerLoop, state: State, meta: Tree, task: Any) -> Estimate:
        """Return the estimate at a state that is taken for the solution. No inner step is made."""
        solved_for = self._held(loop)
        windows: list[Window] = (loop._replace(problem=solved_for) if solved_for else loop).windows(task)
        return implicit_at(loop, self.solver, self.curvature, windows[-1], state, meta, task)

    def _held(self, loop: InnerLoop) -> Problem | None:
        return proximal(loop.problem, self.strength) if self.free else None


@register("method", "hf_maml")
@dataclass(frozen=True, repr=False)
class HFMAML(Method):
    """Use central differences of the gradient for second-order products: Hessian-free (Fallah et al. 2020).

    Args:
        delta: The length of the difference in φ.
        window: Steps that share a gradient, or a list with the length of each window.

    Example:
        >>> import metastep as ms
        >>> ms.methods.HFMAML(delta=0.01)
        HFMAML(delta=0.01)
    """

    is_exact = False
    delta: Annotated[float, Bound(gt=0)] = 0.1
    window: Steps = 1

    @property
    def curvature(self) -> Curvature:
        return CentralDifference(self.delta)


@register("method", "ggs_maml")
@dataclass(frozen=True, repr=False)
class GGSMAML(Method):
    """Use Gaussian smoothing of the gradient for second-order products (Ji et al. 2020).

    Args:
        samples: Random directions for each product.
        sigma: How far they go.
        window: Steps that share a gradient, or a list with the length of each window.

    Example:
        >>> import metastep as ms
        >>> ms.methods.GGSMAML(samples=16)
        GGSMAML(samples=16)
    """

    is_exact = False
    samples: Annotated[int, Bound(ge=1)] = 8
    sigma: Annotated[float, Bound(gt=0)] = 1e-2
    window: Steps = 1

    @property
    def curvature(self) -> Curvature:
        return GaussianSmoothing(self.samples, self.sigma)


@register("method", "es_maml")
@dataclass(frozen=True, repr=False)
class ESMAML(Method):
    """Use evolution strategies for second-order products, from losses alone (Song et al. 2020).

    θ must be the starting point of φ.

    Args:
        samples: Random directions for each product.
        sigma: How far they go.
        window: Steps that share a gradient, or a list with the length of each window.

    Example:
        >>> import metastep as ms
        >>> ms.methods.ESMAML(samples=16)
        ESMAML(samples=16)
    """

    is_exact = False
    needs_start = True
    samples: Annotated[int, Bound(ge=1)] = 8
    sigma: Annotated[float, Bound(gt=0)] = 1e-1
    window: Steps = 1

    @property
    def curvature(self) -> Curvature:
        return ZerothOrder(self.samples, self.sigma)


@register("method", "anil")
@dataclass(frozen=True, repr=False)
class ANIL(Method):
    """Adapt the head alone; all other parameters stay as they are in θ (Raghu et al. 2020).

    Args:
        head: How the names of the adapted parameters begin, or a function of a name that says whether it is adapted.
        window: Steps that share a gradient, or a list with the length of each window.
        curvature: How second-order products are computed.

    Example:
        >>> import metastep as ms
        >>> ms.methods.ANIL(head="fc")
        ANIL(head='fc')
    """

    head: str | Callable[[str], bool] = "head"
    window: Steps = 1
    curvature: Curvature = exact

    def __post_init__(self) -> None:
        super().__post_init__()
        accepts(self.head)

    def problem(self, problem: Problem) -> Problem:
        return adapt_only(problem, self.head)
