"""Compare the rule of stability of `ms.suggest` with what windows do: long inner loops whose outcome is measured.

For each loop, windows get longer until the loop ends worse than single steps do. The longest window before that is the
outcome. The rule should say the same, or one less. It was made with the loops of two lists in view. Those of the third
list were run when it stood.
"""

from collections.abc import Callable, Iterator
from functools import partial
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


def digits(inner: Any, *hidden: int, between: Callable[[], nn.Module] = nn.Tanh, steps: int = 400) -> Loop:
    """Return the loop on 400 digits with wrong labels, of a linear classifier or one with hidden layers."""
    pictures, drawn = ms.data.load("digits", size=14).labelled().train, torch.Generator().manual_seed(0)
    x, y = pictures.images.flatten(1).double() / 255, spoilt(pictures.labels, drawn)
    sizes = (x.shape[1], *hidden, 10)
    torch.manual_seed(0)
    layers = [part for i in range(len(sizes) - 1) for part in (nn.Linear(sizes[i], sizes[i + 1]), between())][:-1]
    net = nn.Sequential(*layers).double()
    start = {name: p.detach() for name, p in ms.parameters(net).items()}
    return Loop(lambda p, m, b: F.cross_entropy(functional_call(net, p, x), y), start, inner, steps)


def regression(inner: Any, features: int = 30) -> Loop:
    """Return the loop of least squares with features that depend on each other: its curvatures fall like 1 / k²."""
    drawn = torch.Generator().manual_seed(0)
    mixed = torch.linalg.qr(torch.randn(features, features, generator=drawn, dtype=torch.float64))[0]
    x = torch.randn(200, features, generator=drawn, dtype=torch.float64) @ (mixed / torch.arange(1, features + 1))
    y = x.sum(1) + torch.randn(200, generator=drawn, dtype=torch.float64)
    return Loop(lambda p, m, b: (x @ p - y).square().mean(), torch.zeros_like(x[0]), inner, 2000)


def cleaning(inner: Any, data: Path | None, name: str = "mnist") -> Loop:
    """Return the inner loop of hyper-cleaning: half of the labels of 1,000 pictures are wrong, weights are ½."""
    pictures, drawn = ms.data.load(name, data).labelled().train, torch.Generator().manual_seed(0)
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

SECOND: dict[str, Callable[[], Loop]] = {
    "least squares, SGD 0.05": lambda: regression(SGD(0.05)),
    "least squares, SGD 0.02, momentum 0.8": lambda: regression(SGD(0.02, momentum=0.8)),
    "least squares, Nesterov 0.01": lambda: regression(SGD(0.01, momentum=0.95, nesterov=True)),
    "linear, SGD 0.2, momentum 0.5": lambda: digits(SGD(0.2, momentum=0.5)),
    "linear, RMSprop 0.002": lambda: digits(ms.RMSprop(0.002)),
    "ReLU 32, SGD 0.1": lambda: digits(SGD(0.1), 32, between=nn.ReLU),
    "ReLU 32, SGD 0.02, momentum 0.9": lambda: digits(SGD(0.02, momentum=0.9), 32, between=nn.ReLU),
    "sigmoid 32, SGD 0.3": lambda: digits(SGD(0.3), 32, between=nn.Sigmoid),
    "softplus 24 24, SGD 0.05": lambda: digits(SGD(0.05), 24, 24, between=nn.Softplus),
    "softplus 24 24, Adam 0.002": lambda: digits(ms.Adam(0.002), 24, 24, between=nn.Softplus),
    "tanh 64 32, SGD 0.1": lambda: digits(SGD(0.1), 64, 32),
    "tanh 64 32, SGD 0.01, momentum 0.95": lambda: digits(SGD(0.01, momentum=0.95), 64, 32),
}
FASHION = {
    "Fashion-MNIST, SGD 0.05": SGD(0.05),
    "Fashion-MNIST, SGD 0.02, momentum 0.8": SGD(0.02, momentum=0.8),
    "Fashion-MNIST, Adam 0.0005": ms.Adam(0.0005),
}
THIRD: dict[str, Callable[[], Loop]] = {
    "linear, SGD 0.3": lambda: digits(SGD(0.3)),
    "GELU 32, SGD 0.1": lambda: digits(SGD(0.1), 32, between=nn.GELU),
    "GELU 32, SGD 0.02, momentum 0.9": lambda: digits(SGD(0.02, momentum=0.9), 32, between=nn.GELU),
    "SiLU 48, SGD 0.05": lambda: digits(SGD(0.05), 48, between=nn.SiLU),
    "ELU 24 24, SGD 0.1": lambda: digits(SGD(0.1), 24, 24, between=nn.ELU),
    "tanh 48, SGD 0.05": lambda: digits(SGD(0.05), 48),
    "tanh 16 16 16, SGD 0.1": lambda: digits(SGD(0.1), 16, 16, 16),
    "softplus 32, SGD 0.2": lambda: digits(SGD(0.2), 32, between=nn.Softplus),
    "sigmoid 32 32, SGD 0.5": lambda: digits(SGD(0.5), 32, 32, between=nn.Sigmoid),
    "ReLU 64 64, SGD 0.05": lambda: digits(SGD(0.05), 64, 64, between=nn.ReLU),
    "ReLU 64, Adam 0.001": lambda: digits(ms.Adam(0.001), 64, between=nn.ReLU),
    "leaky ReLU 32, Nesterov 0.02": lambda: digits(SGD(0.02, momentum=0.9, nesterov=True), 32, between=nn.LeakyReLU),
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


def all_loops(data: Path | None) -> Iterator[tuple[int, str, Callable[[], Loop]]]:
    """Yield the number of a list, and a name and a loop of it."""
    for number, loops in enumerate((LOOPS, SECOND, THIRD), start=1):
        yield from ((number, name, loop) for name, loop in loops.items())
    for number, of, inners in ((1, "mnist", CLEANING), (2, "fashion_mnist", FASHION)):
        yield from ((number, name, partial(cleaning, inner, data, of)) for name, inner in inners.items())


def main() -> None:
    parser = arguments.parser("stable_windows", __doc__)
    arguments.add_data(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = (row_of(name, loop()) | {"list": number} for number, name, loop in all_loops(options.data))
    results.write_each("stable-windows", arguments.command("stable_windows", options), [], rows)
