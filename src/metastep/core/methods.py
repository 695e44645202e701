"""The methods, under the names people know. Each takes a problem, inner dynamics and a number of steps."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from metastep.core.backprop import backprop
from metastep.core.carrying import continued, room_for_memory
from metastep.core.checks import require_no_decay, require_rate
from metastep.core.curvature import Curvature, central_difference, exact, gaussian_smoothing, zeroth_order
from metastep.core.dynamics import SGD, Adam, Dynamics, RMSprop
from metastep.core.estimators import Estimator, displacement, first_order, implicit, unrolled
from metastep.core.problems import adapt_only, proximal, room_for_rates
from metastep.core.rates import at_step
from metastep.core.solvers import Solver, conjugate_gradient
from metastep.core.trees import Tree, map_tree
from metastep.core.windows import Problem, Steps, inner_loop


def maml(problem: Problem, dynamics: Dynamics, steps: Steps, curvature: Curvature = exact) -> Estimator:
    """Exact meta-gradient: every step evaluates its gradient, T second-order products (Finn et al. 2017)."""
    return unrolled(inner_loop(problem, dynamics, steps), curvature)


def multi_step(
    problem: Problem, dynamics: Dynamics, steps: Steps, window: int = 1, curvature: Curvature = exact
) -> Estimator:
    """Multi-step estimation: `window` steps share a gradient, T/n second-order products (Kim et al. 2020)."""
    return unrolled(inner_loop(problem, dynamics, steps, window), curvature)


def truncated(
    problem: Problem, dynamics: Dynamics, steps: Steps, depth: int, window: int = 1, curvature: Curvature = exact
) -> Estimator:
    """The sweep stops after the last `depth` windows."""
    return unrolled(inner_loop(problem, dynamics, steps, window), curvature, depth)


def fo_maml(problem: Problem, dynamics: Dynamics, steps: Steps, window: int = 1) -> Estimator:
    """First order: ∇L(φ_{T+1}) (Finn et al. 2017).

    Of a θ that is not where φ starts, it sees only what enters the outer loss directly; of one that is in the window
    losses or the rates alone, the gradient is 0. Use multi_step, maml, hf_maml or ggs_maml for that.
    """
    return first_order(inner_loop(problem, dynamics, steps, window))


def reptile(problem: Problem, dynamics: Dynamics, steps: Steps, window: int = 1, carried: bool = False) -> Estimator:
    """θ − φ_{T+1}; with an outer SGD of rate ε, θ moves by ε towards φ_{T+1} (Nichol et al. 2018).

    carried: the optimizer's memory goes on from task to task, as in the code that was released, by the same rule:
    meta is `with_memory(θ, dynamics)`. Another outer rule, or a rate above 1, could make second moments negative.
    """
    problem, dynamics = (room_for_memory(problem), continued(dynamics)) if carried else (problem, dynamics)
    return displacement(inner_loop(problem, dynamics, steps, window), carried)


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

    free: the inner loop is not held by λ, as in the code that was released: φ* then minimises the inner loss alone, and
    λ only damps the solver.
    """
    require_no_decay(dynamics, "iMAML")
    held = proximal(problem, strength)
    loop = inner_loop(problem if free else held, dynamics, steps, window)
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
    learned = _with_learned(dynamics, lambda meta, step: meta["rates"])
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
    learned = _with_learned(dynamics, lambda meta, step: map_tree(lambda rate: at_step(rate, step), meta["rates"]))
    loop = inner_loop(room_for_rates(problem), learned, steps, window)
    weights = [1 / len(loop.lengths)] * len(loop.lengths) if weights is None else weights
    return unrolled(loop, curvature, weights=weights)


def reference(
    problem: Problem,
    dynamics: Dynamics,
    steps: Steps,
    window: int = 1,
    weights: Sequence[float] | Tensor | None = None,
) -> Estimator:
    """Autograd through the stored unroll: what `multi_step` must equal, at the memory that it saves."""
    return backprop(inner_loop(problem, dynamics, steps, window), weights)


def _with_learned(dynamics: SGD | Adam | RMSprop, lr: Callable[[Tree, int], Tree]) -> SGD | Adam | RMSprop:
    require_rate(dynamics, (SGD, Adam, RMSprop))
    return replace(dynamics, lr=lr)
