"""Compare the rule of stability of `ms.suggest` with what windows do: long inner loops whose outcome is measured.

For each loop, windows get longer until the loop ends worse than single steps do. The longest window before that is the
outcome. The rule should say the same, or one less.
"""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import metastep as ms
from metastep.core.stability import LONGEST
from metastep.core.suggest import Suggestion
from metastep.core.trees import Tree
from metastep.core.windows import inner_loop
from study import results
from study.experiments import arguments

WORSE = 0.005  # of the loss at the start, above the end of single steps
WRONG = 0.5  # part of the labels


class Loop(NamedTuple):
    """One inner loop: what is minimised, by what, and from where."""

    loss: Callable[[Tree, Tree, Any], Tensor]
    start: Tree
    inner: Any
    steps: int


def quadratic(inner: Any, *curvatures: float) -> Loop:
    """Return the loop on ½ Σ λ φ², whose λ are known."""
    scale = torch.tensor(curvatures, dtype=torch.float64)
    return Loop(lambda p, m, b: (scale * p.square()).sum() / 2, torch.ones_like(scale), inner, 6000)


def digits(inner: Any, *hidden: int, steps: int = 400) -> Loop:
    """Return the loop on 400 digits with wrong labels, of a linear classifier or one with tanh layers."""
    pictures, drawn = ms.data.load("digits", size=14).labelled().train, torch.Generator().manual_seed(0)
    x, y = pictures.images.flatten(1).double() / 255, spoilt(pictures.labels, drawn)
    sizes = (x.shape[1], *hidden, 10)
    torch.manual_seed(0)
    layers = [part for i in range(len(sizes) - 1) for part in (nn.Linear(sizes[i], sizes[i + 1]), nn.Tanh())][:-1]
    net = nn.Sequential(*layers).double()
    start = {name: p.detach() for name, p in ms.parameters(net).items()}
    return Loop(lambda p, m, b: F.cross_entropy(functional_call(net, p, x), y), start, inner, steps)


def cleaning(inner: Any, data: Path | None) -> Loop:
    """Return the inner loop of hyper-cleaning: half of the labels of 1,000 MNIST pictures are wrong, weights are ½."""
    pictures, drawn = ms.data.load("mnist", data).labelled().train, torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(pictures.labels), generator=drawn)[:1000]
    x, y = pictures.images[chosen].flatten(1).double() / 255, spoilt(pictures.labels[chosen], drawn)
    start = {"weight": torch.zeros(784, 10, dtype=x.dtype), "bias": torch.zeros(10, dtype=x.dtype)}
    return Loop(lambda p, m, b: F.cross_entropy(x @ p["weight"] + p["bias"], y) / 2, start, inner, 400)


def spoilt(labels: Tensor, drawn: torch.Generator) -> Tensor:
    """Return labels with a part drawn anew. Such losses keep their curvature."""
    wrong = torch.rand(len(labels), generator=drawn) < WRONG
    return torch.where(wrong, torch.randint(10, (len(labels),), generator=drawn), labels)


SGD = ms.SGD
CLEANING = {
    "cleaning, SGD 0.1": SGD(0.1),
    "cleaning, SGD 0.5": SGD(0.5),
    "cleaning, SGD 0.02, momentum 0.9": SGD(0.02, momentum=0.9),
    "cleaning, Adam 0.001": ms.Adam(0.001),
}
LOOPS: dict[str, Callable[[], Loop]] = {
    "quadratic, SGD 0.1": lambda: quadratic(SGD(0.1), 1.0, 0.3, 0.1),
    "quadratic, SGD 0.3": lambda: quadratic(SGD(0.3), 1.0, 0.3, 0.1),
    "quadratic, SGD 1.9": lambda: quadratic(SGD(1.9), 1.0, 0.3, 0.1),
    "quadratic, SGD 0.02, momentum 0.9": lambda: quadratic(SGD(0.02, momentum=0.9), 1.0, 0.3, 0.1),
    "quadratic, SGD 0.2, momentum 0.9": lambda: quadratic(SGD(0.2, momentum=0.9), 1.0, 0.3, 0.1),
    "quadratic, SGD 0.1, momentum 0.5": lambda: quadratic(SGD(0.1, momentum=0.5), 1.0, 0.3, 0.1),
    "quadratic, Nesterov 0.05": lambda: quadratic(SGD(0.05, momentum=0.9, nesterov=True), 1.0, 0.3, 0.1),
    "quadratic, SGD 0.1, decay 0.3": lambda: quadratic(SGD(0.1, weight_decay=0.3), 1.0, 0.3, 0.1),
    "linear, SGD 0.1": lambda: digits(SGD(0.1)),
    "linear, SGD 0.5": lambda: digits(SGD(0.5)),
    "linear, SGD 0.02, momentum 0.9": lambda: digits(SGD(0.02, momentum=0.9)),
    "linear, Adam 0.001": lambda: digits(ms.Adam(0.001)),
    "linear, Adam 0.005": lambda: digits(ms.Adam(0.005)),
    "tanh 32, SGD 0.1": lambda: digits(SGD(0.1), 32),
    "tanh 32, SGD 0.02, momentum 0.9": lambda: digits(SGD(0.02, momentum=0.9), 32),
    "tanh 32, RMSprop 0.001": lambda: digits(ms.RMSprop(0.001), 32),
}


def ends(loop: Loop, window: int) -> float:
    """Return the loss at the end of the loop with windows of this length."""
    problem = ms.Problem(lambda m, t: loop.start, ms.every_window(loop.loss), lambda p, m, t: loop.loss(p, m, t.query))
    one = inner_loop(problem, loop.inner, loop.steps, window)
    empty = torch.zeros(())
    with torch.no_grad():
        state = one.adapt(empty, ms.Task(empty, empty))
        return float(loop.loss(state.params, empty, empty))


def outcome(loop: Loop, most: int = LONGEST) -> int:
    """Return the longest window before the loop ends worse than by single steps."""
    empty = torch.zeros(())
    start, single = float(loop.loss(loop.start, empty, empty)), ends(loop, 1)
    worse = (n for n in range(2, most + 1) if not ends(loop, n) <= single + WORSE * start)
    return next(worse, most + 1) - 1


def ruled(loop: Loop) -> Suggestion:
    """Return what `suggest` says of a loop."""
    problem = ms.Problem(lambda m, t: m, ms.every_window(loop.loss), lambda p, m, t: loop.loss(p, m, t.query))
    empty = torch.zeros(1, 1)
    return ms.suggest(problem, loop.inner, steps=loop.steps, meta=loop.start, tasks=ms.Task(empty, empty))


def row_of(name: str, loop: Loop) -> dict[str, Any]:
    found, longest = ruled(loop), outcome(loop)
    curvatures = [[at.step, float(f"{at.curvature:.4g}")] for at in found.curvatures]
    return {"loop": name, "steps": loop.steps, "curvatures": curvatures, "rule": found.longest, "outcome": longest}


def main() -> None:
    parser = arguments.parser("stable_windows", __doc__)
    arguments.add_data(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = (row_of(name, loop()) for name, loop in LOOPS.items())
    cleaned = (row_of(name, cleaning(inner, options.data)) for name, inner in CLEANING.items())
    results.write_each("stable-windows", arguments.command("stable_windows", options), [], chain(rows, cleaned))
