"""Claims that are worked out on the spot, in float64, by the library itself."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import mse_loss

from metastep.core.counting import counting
from metastep.core.method import Method
from metastep.core.methods import MAML, MultiStep
from metastep.core.modules import parameters
from metastep.core.optimizers import SGD, Adam, InnerOptimizer
from metastep.core.problems import few_shot
from metastep.core.trees import Tree, relative_change
from metastep.core.windows import Problem, Task
from metastep.data.errors import DataError
from metastep.data.registry import load
from metastep.step.gradient import MetaGradient
from study.claims.claims import Finding, Presets, holds
from study.claims.evidence import Evidence
from study.claims.files import NOT_AT_HAND
from study.claims.transfer_runs import is_there
from study.targets import SIZES, TARGETS, config_of

STEPS, WINDOWS = 8, (2, 4, 8)
LARGEST_ERROR = 1e-12


def moved(inner: InnerOptimizer, steps: int, start: float, gradient: float) -> float:
    """φ after steps that share one gradient, of one number"""
    phi, g = (torch.tensor(value, dtype=torch.float64) for value in (start, gradient))
    return float(inner.advance(inner.init(phi), g, None, steps).params)


def proposition_1(evidence: Evidence, presets: Presets) -> Finding:
    """Two shared steps as one with other hyper-parameters: two windows determine these, and the third contradicts them.

    φ_t = b_t·g + c_t·φ₁ with constant g; b̃, c̃ belong to the one step (η̃, ω̃, μ̃) with b̃₂ = b₃, c̃₂ = c₃, b̃₃ = b₅.
    """
    momentum = SGD(0.1, momentum=0.9, weight_decay=1e-4)
    b3, b5, b7 = (moved(momentum, steps, 0, 1) for steps in (2, 4, 6))
    eta = -b3
    omega = (1 - moved(momentum, 2, 1, 0)) / eta
    mu = -b5 / eta - 2 + eta * omega
    b4 = moved(SGD(eta, momentum=mu, weight_decay=omega), 3, 0, 1)
    as_printed = (round(b4, 2), round(b7, 2)) == (-1.88, -1.78)
    note = f"η̃ = {eta:.6f}, ω̃ = {omega:.3g} (which is ω itself), μ̃ = {mu:.6f}, above 1."
    return Finding(holds(as_printed), {"b̃₄": round(b4, 6), "b₇": round(b7, 6)}, note=note)


@dataclass(frozen=True)
class Toy:
    """A tanh net, whose Hessian changes everywhere, and three tasks"""

    problem: Problem
    meta: Tree
    tasks: Task

    @classmethod
    def drawn(cls, seed: int = 0) -> "Toy":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)).double()
            x, y = torch.randn(3, 10, 3, dtype=torch.float64), torch.randn(3, 10, 2, dtype=torch.float64)
        return cls(few_shot(net, mse_loss, {}), parameters(net), Task((x[:, :5], y[:, :5]), (x[:, 5:], y[:, 5:])))

    def gradient(self, method: Method, inner: InnerOptimizer, steps: int = STEPS) -> Tree:
        return MetaGradient(self.problem, method, inner, steps=steps)(self.meta, self.tasks).grad


def naive_sgd(evidence: Evidence, presets: Presets) -> Finding:
    """Without momentum and decay, n shared steps at η are one step at nη: meta-gradients are the same"""
    errors = [_away_from_one_step(n, momentum=0.0) for n in WINDOWS]
    with_momentum = _away_from_one_step(2, momentum=0.9)
    note = f"Largest relative difference of meta-gradients, n = {', '.join(map(str, WINDOWS))} of {STEPS} steps; "
    note += f"with momentum 0.9 they differ by {with_momentum:.2f}."
    return Finding(holds(max(errors) < LARGEST_ERROR < with_momentum), float(f"{max(errors):.2g}"), note=note)


def _away_from_one_step(n: int, momentum: float) -> float:
    """Return how far n shared steps' meta-gradient is from that of a single step at n times the rate."""
    toy, rate = Toy.drawn(), 0.05
    shared = toy.gradient(MultiStep(window=n), SGD(rate, momentum=momentum))
    return float(relative_change(shared, toy.gradient(MAML(), SGD(n * rate, momentum=momentum), STEPS // n)))


def products(evidence: Evidence, presets: Presets) -> Finding:
    """Kn second-order products without, K with estimation: counted in calls for the meta-gradient"""
    toy = Toy.drawn()
    counted = {n: [_products(toy, inner, n) for inner in (SGD(0.05, momentum=0.9), Adam(0.01))] for n in (1, 2, 4, 8)}
    as_claimed = all(set(found) == {STEPS // n} for n, found in counted.items())
    value = {f"n = {n}": found[0] for n, found in counted.items()}
    return Finding(holds(as_claimed), value, note=f"Of {STEPS} inner steps, by SGD with momentum and by Adam alike.")


def _products(toy: Toy, inner: InnerOptimizer, n: int) -> int:
    with counting() as counts:
        toy.gradient(MultiStep(window=n), inner)
    return counts.products


def split_sizes(evidence: Evidence, presets: Presets) -> Finding:
    """Pictures of each part, counted in what the loaders return, for the data sets that are available"""
    counted = dict(_counted(evidence))
    absent = [name for name in TARGETS if name not in counted]
    wrong = [name for name, sizes in counted.items() if sizes != SIZES[name]]
    left = f" {NOT_AT_HAND}: {', '.join(absent)}." if absent else ""
    if not counted:
        return Finding("not run", note=left.strip())
    refused = f"Other than in the paper, or refused: {', '.join(wrong)}."
    note = refused if wrong else f"{len(counted)} of {len(TARGETS)} counted."
    about = {"data": ", ".join(counted), "command": "python -m study claims --only X21 --data DATA"}
    value = {name: list(sizes) for name, sizes in counted.items()}
    return Finding(holds(not wrong), value, note=note + left, about=about)


def _counted(evidence: Evidence) -> Iterator[tuple[str, tuple[int, ...]]]:
    for target in TARGETS:
        data = config_of(target).data
        if is_there(data.name, evidence.data):
            try:
                yield target, load(data.name, evidence.data, data.size).labelled().counts
            except DataError:  # among other things, other sizes than it should have
                yield target, ()
