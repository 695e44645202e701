"""Compile every registered method with every optimizer on small problems, and compare with plain autograd.

In float64, by inductor itself. NAdam stands for the optimizers of torch.optim whose step is traced. Each row compiles
a plan, which takes 3 to 10 seconds, and a minute on the two large problems: there, every method is compiled with SGD
and every optimizer with Multi-step. The file is written after each row, and the same command continues with the next.
"""

import time
from collections.abc import Iterable
from itertools import product
from typing import Any

import torch

import metastep as ms
from metastep.core import registry
from metastep.core.trees import tree_leaves
from study import results
from study.bench.results import Row
from study.experiments import arguments
from study.problems import PROBLEMS, Work, weighted_problem, work_of

STEPS = 4
OPTIONS: dict[str, dict[str, Any]] = {
    "multi_step": {"window": 2},
    "truncated": {"depth": 2},
    "anil": {"head": lambda name: name.split(".")[0] != "0"},
    "imaml": {"window": 2},
}
OF_OPTIMIZER: dict[str, dict[str, Any]] = {"sgd": {"momentum": 0.9}}
TRACED = "NAdam"
LARGE = ("transformer", "Conv4")
DIFFERENT = [name for name in PROBLEMS if name != "MLP, Adam"]  # which is the other MLP with another optimizer


def compare(problem: str, method: str, optimizer: str) -> Row:
    """Return the relative difference of a compiled meta-gradient from one that is not."""
    work = work_of(problem, torch.float64)
    loss = weighted_problem(work) if work.weighted else ms.few_shot(work.net, work.loss)
    inner = inner_of(optimizer, work)
    parts = loss, registry.named("method", method)(**OPTIONS.get(method, {})), inner
    gradient = ms.MetaGradient(*parts, steps=STEPS, compile=True)
    meta, begun = gradient.init(work.meta), time.process_time()
    torch.manual_seed(0)
    found = gradient(meta, work.tasks)
    seconds, path = time.process_time() - begun, gradient.path
    torch.manual_seed(0)  # where directions are drawn
    expected = ms.MetaGradient(*parts, steps=STEPS)(meta, work.tasks)
    error = float(ms.trees.relative_change(found.grad, expected.grad))
    told = {"problem": problem, "method": method, "optimizer": optimizer}
    return told | {
        "parameters": sum(x.numel() for x in tree_leaves(meta)),
        "error": error,
        "seconds": seconds,
        "path": path,
    }


def inner_of(name: str, work: Work) -> Any:
    if name == TRACED:
        return ms.optimizers.from_torch(torch.optim.NAdam(work.net.parameters(), lr=0.01), work.net)
    return registry.named("optimizer", name)(lr=0.01, **OF_OPTIMIZER.get(name, {}))


def rows_of(some: Iterable[tuple[str, str, str]]) -> Iterable[Row]:
    """Compare each. One that is refused by both has its reason."""
    for problem, method, optimizer in some:
        try:
            yield compare(problem, method, optimizer)
        except ms.MetastepError as error:
            told = {"problem": problem, "method": method, "optimizer": optimizer}
            yield told | {"error": None, "path": f"refused: {error}"}


def main() -> None:
    parser = arguments.parser("compiled_product", __doc__)
    parser.add_argument("--only", nargs="+", default=DIFFERENT, choices=DIFFERENT, help="some problems")
    options = parser.parse_args()
    command = arguments.command("compiled_product", options)
    rows = results.kept("compiled-product", command)
    done = {(row["problem"], row["method"], row["optimizer"]) for row in rows}
    results.write_each(
        "compiled-product", command, rows, rows_of(each for each in wanted(options.only) if each not in done)
    )


def wanted(problems: list[str]) -> Iterable[tuple[str, str, str]]:
    methods = [name for name in registry.names("method") if name != "reference"]
    for problem, method, optimizer in product(problems, methods, [*registry.names("optimizer"), TRACED]):
        if problem not in LARGE or method == "multi_step" or optimizer == "sgd":
            yield problem, method, optimizer
