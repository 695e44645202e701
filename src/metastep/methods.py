"""The methods, under the names people know. Each takes a problem, inner dynamics and a number of steps."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from metastep.carrying import continued, room_for_memory
from metastep.curvature import Curvature, central_difference, exact, gaussian_smoothing, zeroth_order
from metastep.dynamics import SGD, Adam, Dynamics, RMSprop
from metastep.errors import MetastepError
from metastep.estimators import Estimator, backprop, displacement, first_order, implicit, unrolled
from metastep.problems import adapt_only, proximal, room_for_rates
from metastep.solvers import Solver, conjugate_gradient
from metastep.trees import is_number, map_tree
from metastep.windows import InnerLoop, Problem, window_lengths

Steps = int | Sequence[int]


def maml(problem: Problem, dynamics: Dynamics, steps: Steps, curvature: Curvature = exact) -> Estimator:
    """Exact meta-gradient: every step evaluates its gradient, T second-order products (Finn et al. 2017)."""
    return unrolled(InnerLoop(problem, dynamics, window_lengths(steps)), curvature)


def multi_step(
    problem: Problem, dynamics: Dynamics, steps: Steps, window: int = 1, curvature: Curvature = exact
) -> Estimator:
    """Multi-step estimation: `window` steps share a gradient, T/n second-order products (Kim et al. 2020)."""
    return unrolled(InnerLoop(problem, dynamics, window_lengths(steps, window)), curvature)


def truncated(
    problem: Problem, dynamics: Dynamics, steps: Steps, depth: int, window: int = 1, curvature: Curvature = exact
) -> Estimator:
    """The sweep stops after the last `depth` windows."""
    return unrolled(InnerLoop(problem, dynamics, window_lengths(steps, window)), curvature, depth)


def fo_maml(problem: Problem, dynamics: Dynamics, steps: Steps, window: int = 1) -> Estimator:
    """First order: ∇L(φ_{T+1}) (Finn et al. 2017)."""
    return first_order(InnerLoop(problem, dynamics, window_lengths(steps, window)))


def reptile(problem: Problem, dynamics: Dynamics, steps: Steps, window: int = 1, carried: bool = False) -> Estimator:
    """θ − φ_{T+1}; with an outer SGD of rate ε, θ moves by ε towards φ_{T+1} (Nichol et al. 2018).

    carried: the optimizer's memory goes on from task to task, as in the code that was released, by the same rule:
    meta is `with_memory(θ, dynamics)`. An outer rate above 1, or another outer rule, would leave what moments can be.
    """
    problem, dynamics = (room_for_memory(problem), continued(dynamics)) if carried else (problem, dynamics)
    return displacement(InnerLoop(problem, dynamics, window_lengths(steps, window)), carried)


def imaml(
    problem: Problem,
    dynamics: Dynamics,
    steps: Steps,
    strength: float = 2.0,
    solver: Solver | None = None,
    window: int = 1,
    curvature: Curvature = exact,
    free: bool = False,
) -> Estimator:
    """(I + H/λ)⁻¹ ∇L(φ*), φ* minimising the inner loss + ½λ‖φ − θ‖², λ = strength (Rajeswaran et al. 2019).

    free: the inner loop is not held by λ, as in the code that was released. φ* is then another, and λ a damping.
    """
    decay = getattr(dynamics, "weight_decay", 0.0)
    if not (is_number(decay) and decay == 0):
        raise MetastepError(
            f"iMAML with weight_decay = {decay} in the dynamics: the implicit gradient would not know of it. "
            "Set weight_decay=0, or add the penalty to the inner loss."
        )
    held = proximal(problem, strength)
    loop = InnerLoop(problem if free else held, dynamics, window_lengths(steps, window))
    return implicit(loop, solver or conjugate_gradient(), curvature, held if free else None)


def hf_maml(problem: Problem, dynamics: Dynamics, steps: Steps, delta: float = 0.1, window: int = 1) -> Estimator:
    """Hessian-free: central differences of the gradient (Fallah et al. 2020)."""
    return multi_step(problem, dynamics, steps, window, central_difference(delta))


def ggs_maml(
    problem: Problem, dynamics: Dynamics, steps: Steps, samples: int = 8, sigma: float = 1e-2, window: int = 1
) -> Estimator:
    """Gradient-based Gaussian smoothing (Ji et al. 2020)."""
    return multi_step(problem, dynamics, steps, window, gaussian_smoothing(samples, sigma))


def es_maml(
    problem: Problem, dynamics: Dynamics, steps: Steps, samples: int = 8, sigma: float = 1e-1, window: int = 1
) -> Estimator:
    """Evolution strategies: curvature from losses alone (Song et al. 2020); θ must be where φ starts."""
    return multi_step(problem, dynamics, steps, window, zeroth_order(samples, sigma))


def anil(
    problem: Problem,
    dynamics: Dynamics,
    steps: Steps,
    head: Callable[[str], bool],
    window: int = 1,
    curvature: Curvature = exact,
) -> Estimator:
    """Only the parameters whose name `head` accepts are adapted; the others are held (Raghu et al. 2020)."""
    return multi_step(adapt_only(problem, head), dynamics, steps, window, curvature)


def meta_sgd(
    problem: Problem, dynamics: SGD | Adam | RMSprop, steps: Steps, window: int = 1, curvature: Curvature = exact
) -> Estimator:
    """Inner rates are learned: meta = with_rates(params, lr), one rate for each entry or tensor (Li et al. 2017)."""
    learned = replace(dynamics, lr=lambda meta, step: meta["rates"])
    return multi_step(room_for_rates(problem), learned, steps, window, curvature)


def maml_pp(
    problem: Problem,
    dynamics: SGD | Adam | RMSprop,
    steps: Steps,
    weights: Sequence[float] | Tensor | None = None,
    window: int = 1,
    curvature: Curvature = exact,
) -> Estimator:
    """Rates for each layer and step, and a weighted outer loss after every window (Antoniou et al. 2019).

    meta = with_rates(params, lr, steps). Weights default to equal ones; the paper anneals them to the last.
    """
    lengths = window_lengths(steps, window)
    learned = replace(dynamics, lr=lambda meta, step: map_tree(lambda rate: rate[step], meta["rates"]))
    weights = [1 / len(lengths)] * len(lengths) if weights is None else weights
    return unrolled(InnerLoop(room_for_rates(problem), learned, lengths), curvature, weights=weights)


def reference(problem: Problem, dynamics: Dynamics, steps: Steps, window: int = 1, **options: Any) -> Estimator:
    """Autograd through the stored unroll: what `multi_step` must equal, at the memory that it saves."""
    return backprop(InnerLoop(problem, dynamics, window_lengths(steps, window)), **options)
