"""Measure what an inner optimizer costs whose step is traced, compared with our own.

Where torch.optim has our optimizer, `maximize=True` has it traced, and the loss is negative: both move alike, and must
agree. The others are compared with our Adam, which does about as much. One thread, processor time, interleaved.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import optim

import metastep as ms
from study import results
from study.bench.module_cases import CPU, METHODS, made, work_in
from study.bench.modules import interleaved, numbers
from study.bench.pairs import LEAST_PAIRS
from study.bench.results import Row
from study.experiments import arguments
from study.problems import Params, Step, Work

RATE, AGREE = 0.001, 1e-9
SUBJECTS = {"a": "MLP", "perceptron": "perceptron", "d": "transformer"}
OURS: dict[str, tuple[Any, Any]] = {
    "SGD": (partial(optim.SGD, momentum=0.9), ms.SGD(RATE, momentum=0.9)),
    "Adam": (optim.Adam, ms.Adam(RATE)),
    "AdamW": (optim.AdamW, ms.AdamW(RATE, weight_decay=0.01)),
    "RMSprop": (optim.RMSprop, ms.RMSprop(RATE)),
}
OTHERS: dict[str, Any] = {
    "Adam, amsgrad": partial(optim.Adam, amsgrad=True),
    "RMSprop, centered": partial(optim.RMSprop, centered=True),
    "Adagrad": optim.Adagrad,
    "Adadelta": optim.Adadelta,
    "Adamax": optim.Adamax,
    "RAdam": optim.RAdam,
    "NAdam": optim.NAdam,
    "ASGD": optim.ASGD,
    "Rprop": optim.Rprop,
}


def pair_of(subject: str, name: str, method: str) -> tuple[Step, Step]:
    """Return a meta-gradient with an optimizer of ours, and with one that is traced."""
    of = made(subject)
    work, steps = work_in(of), of.steps
    if name in OURS:
        kind, own = OURS[name]
        traced, sign = kind(work.net.parameters(), RATE, maximize=True), -1.0
    else:
        own, sign = ms.Adam(RATE), 1.0
        traced = OTHERS[name](work.net.parameters(), RATE)
    return step_of(work, own, method, steps), step_of(work, traced, method, steps, sign)


def step_of(work: Work, inner: Any, method: str, steps: int, sign: float = 1.0) -> Step:
    def loss(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return sign * work.loss(prediction, target)

    gradient = ms.MetaGradient(ms.few_shot(work.net, loss), METHODS[method], inner, steps=steps)

    def step() -> tuple[torch.Tensor, Params]:
        found = gradient(work.meta, work.tasks)
        return sign * found.loss, {name: sign * g for name, g in found.grad.items()}

    return step


def require_agreement(name: str, subject: str, method: str) -> None:
    """Compare both in float64: RMSprop turns the rounding errors of float32 into per cents."""
    torch.set_default_dtype(torch.float64)
    try:
        own, traced = pair_of(subject, name, method)
        difference = float(ms.trees.relative_change(traced()[1], own()[1]))
    finally:
        torch.set_default_dtype(torch.float32)
    if not difference < AGREE:
        raise ms.MetastepError(f"{name} on {subject}, {method}: the traced one differs from ours by {difference:.1e}.")


def rows_of(wanted: Iterable[tuple[str, str, str]], pairs: int) -> Iterable[Row]:
    for name, subject, method in wanted:
        if name in OURS:
            require_agreement(name, subject, method)
        own, traced = pair_of(subject, name, method)
        costs = numbers(*interleaved([own, traced], pairs, CPU))
        about = {"optimizer": name, "compared with": name if name in OURS else "Adam", "subject": SUBJECTS[subject]}
        yield (
            about
            | {"method": method, "pairs": pairs, "ms": costs["ms"], "ours_ms": costs["hand_ms"]}
            | {"ratio": costs["ratio"]}
        )


def main() -> None:
    parser = arguments.parser("inner_optimizers", __doc__)
    parser.add_argument("--pairs", type=int, default=LEAST_PAIRS, help="how often each has its turn")
    options = parser.parse_args()
    torch.set_num_threads(1)
    command = arguments.command("inner_optimizers", options)
    rows = results.kept("inner-optimizers", command)
    known = {(row["optimizer"], row["subject"], row["method"]) for row in rows}
    wanted = [
        (name, subject, method)
        for subject, told in SUBJECTS.items()
        for name in (*OURS, *OTHERS)
        for method in METHODS
        if (name, told, method) not in known
    ]
    results.write_each("inner-optimizers", command, rows, rows_of(wanted, options.pairs))
