"""See an approximation before paying for it: how inner gradients change, and how far each method is from exact."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from metastep.core.counting import counting
from metastep.core.dynamics import Dynamics
from metastep.core.estimators import Estimate, Estimator
from metastep.core.explain import explained
from metastep.core.memory import peak_bytes
from metastep.core.noise import Generators, generators, set_generators
from metastep.core.tasks import over_tasks, stack
from metastep.core.trees import Tree, dot, map_tree, norm, relative_change, tree_leaves
from metastep.core.windows import Problem, Steps, inner_loop, task_gradient
from metastep.errors import MetastepError


def gradient_difference(problem: Problem, dynamics: Dynamics, steps: Steps) -> Callable[[Tree, Any], Tensor]:
    """‖∇L(φ_{t+1}) − ∇L(φ_t)‖ / ‖∇L(φ_{t+1})‖ at every inner step: small where reusing a gradient is safe.

    Returns a function of (meta, tasks), stacked or a list, that gives a tensor (tasks, steps).
    """
    loop = inner_loop(problem, dynamics, steps)

    def along(meta: Tree, task: Any) -> Tensor:
        state, changes = loop.begin(meta, task), []
        for window in loop.windows(task):
            before = task_gradient(window, state.params, meta)
            state = dynamics.advance(state, before, meta, window.steps)
            after = task_gradient(window, state.params, meta)
            changes.append(relative_change(before, after))
        return torch.stack(changes)

    mapped = vmap(along, in_dims=(None, 0), randomness="different")

    @torch.no_grad()
    def differences(meta: Tree, tasks: Any) -> Tensor:
        with explained(meta):
            return mapped(meta, stack(tasks) if isinstance(tasks, list) else tasks)

    return differences


@dataclass(frozen=True)
class Comparison:
    """One method against the reference, on the same θ and tasks."""

    method: str
    cosine: float
    relative_error: float
    gradients: int
    products: int
    seconds: float
    peak_bytes: int


def compare(
    methods: Mapping[str, Estimator],
    meta: Tree,
    tasks: Any,
    reference: str | None = None,
    chunk_size: int | None = None,
    repeats: int = 3,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Comparison]:
    """Every method's meta-gradient against that of `reference` (the first one by default), and what it costs.

    Gradients and second-order products are counted for one task; seconds (the fastest of `repeats`) and peak memory are
    of the whole batch. Reptile's "gradient" has a length of its own: of it, only the cosine means something.
    progress: told how many methods are done, of how many.
    """
    if not isinstance(methods, Mapping):
        raise MetastepError(
            f'methods is a {type(methods).__name__}: name each, such as {{"MAML": maml(…), "FO-MAML": fo_maml(…)}}.'
        )
    if not methods:
        raise MetastepError("there is no method to compare: the mapping is empty.")
    reference = reference or next(iter(methods))
    if reference not in methods:
        raise MetastepError(f"the reference '{reference}' is not among the methods: {', '.join(methods)}.")
    tasks = stack(tasks) if isinstance(tasks, list) else tasks
    drawn = generators()
    progress(0, len(methods))
    exact = _double(over_tasks(methods[reference], chunk_size)(meta, tasks).grad)
    rows = []
    for name, method in methods.items():
        rows.append(_against(exact, drawn, name, method, meta, tasks, chunk_size, repeats))
        progress(len(rows), len(methods))
    return rows


def _against(
    exact: Tree,
    drawn: Generators,
    name: str,
    method: Estimator,
    meta: Tree,
    tasks: Any,
    chunk_size: int | None,
    repeats: int,
) -> Comparison:
    step = over_tasks(method, chunk_size)
    with counting() as counts:
        method(meta, map_tree(lambda x: x[0], tasks))
    seconds = min(_seconds(step, meta, tasks) for _ in range(repeats))
    set_generators(drawn)  # what draws random numbers has those of the reference, as far as it draws as many
    estimate, peak = peak_bytes(lambda: step(meta, tasks), tree_leaves(meta)[0].device)
    grad = _double(estimate.grad)
    return Comparison(
        name,
        cosine=float(dot(grad, exact) / (norm(grad) * norm(exact))),
        relative_error=float(relative_change(grad, exact)),
        gradients=counts.gradients,
        products=counts.products,
        seconds=seconds,
        peak_bytes=peak,
    )


def _double(tree: Tree) -> Tree:
    """A bad estimate may be too long for its own precision"""
    return map_tree(lambda x: x.to(torch.complex128 if x.is_complex() else torch.float64), tree)


def _seconds(step: Callable[[Tree, Any], Estimate], meta: Tree, tasks: Any) -> float:
    start = time.perf_counter()
    float(step(meta, tasks).loss)  # waits for a GPU
    return time.perf_counter() - start
