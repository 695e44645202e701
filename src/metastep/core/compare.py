"""See an approximation before paying for it: how inner gradients change, and how far each method is from exact."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.func import vmap

from metastep.core.counting import counting, fastest, peak_bytes
from metastep.core.estimators import Estimate, Estimator
from metastep.core.modules import tree_of
from metastep.core.optimizers import InnerOptimizer
from metastep.core.random import Generators, generators, set_generators
from metastep.core.tasks import require_order, stack
from metastep.core.torch_errors import explained
from metastep.core.trees import Tree, dot, doubled, map_tree, norm, relative_change, tree_leaves
from metastep.core.windows import Problem, Steps, inner_loop, task_gradient
from metastep.errors import MetastepError


def gradient_difference(problem: Problem, inner: InnerOptimizer, steps: Steps) -> Callable[[Tree, Any], Tensor]:
    """Measure how much the inner gradient changes from step to step: small where reusing a gradient is safe.

    The change is ‖∇L(φ_{t+1}) − ∇L(φ_t)‖ / ‖∇L(φ_{t+1})‖.

    Args:
        problem: What the inner loop solves.
        inner: The inner optimizer.
        steps: Inner steps.

    Returns:
        A function of (meta, tasks), stacked or a list, that gives a tensor (tasks, steps).

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> net = torch.nn.Linear(2, 1)
        >>> problem = ms.few_shot(net, torch.nn.functional.mse_loss)
        >>> batch = torch.randn(4, 5, 2), torch.randn(4, 5, 1)
        >>> changes = ms.gradient_difference(problem, ms.SGD(lr=0.01), steps=3)
        >>> changes(ms.parameters(net), ms.Task(batch, batch)).shape
        torch.Size([4, 3])
    """
    loop = inner_loop(problem, inner, steps)

    def along(meta: Tree, task: Any) -> Tensor:
        state, changes = loop.begin(meta, task), []
        for window in loop.windows(task):
            before = task_gradient(window, state.params, meta)
            state = loop.inner.advance(state, before, meta, window.steps)
            after = task_gradient(window, state.params, meta)
            changes.append(relative_change(before, after))
        return torch.stack(changes)

    mapped = vmap(along, in_dims=(None, 0), randomness="different")

    @torch.no_grad()
    def differences(meta: Tree, tasks: Any) -> Tensor:
        require_order(meta, tasks)
        meta = tree_of(meta)
        with explained(meta):
            return mapped(meta, stack(tasks) if isinstance(tasks, list) else tasks)

    return differences


class Gradient(Protocol):
    """What a `MetaGradient` is to a comparison."""

    @property
    def estimator(self) -> Estimator: ...

    def __call__(self, meta: Tree, tasks: Any) -> Estimate: ...


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
    growth: float | None = None
    """‖Λ₀‖ / ‖Λ_T‖ of the sweep, the median over tasks; None if nothing is swept"""


def compare(
    methods: Mapping[str, Gradient],
    meta: Tree,
    tasks: Any,
    reference: str | None = None,
    repeats: int = 3,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Comparison]:
    """Compare the meta-gradients of several methods with that of one of them, and what each costs.

    Gradients and second-order products are counted for one task. Seconds (the fastest of `repeats`) and peak memory
    are those of the whole batch. Reptile's meta-gradient has a length of its own: only its cosine has a meaning.

    Args:
        methods: One `MetaGradient` for each name.
        meta: θ.
        tasks: Stacked tasks, or a list.
        reference: The name that the others are compared with; the first one if left out.
        repeats: How often each is timed.
        progress: Called with how many methods are done, of how many.

    Returns:
        One row for each method, in their order.

    Raises:
        MetastepError: There is no method, or no reference of that name.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> net = torch.nn.Linear(2, 1)
        >>> problem, sgd = ms.few_shot(net, torch.nn.functional.mse_loss), ms.SGD(lr=0.1)
        >>> named = {"MAML": ms.MAML(), "first order": ms.FOMAML()}
        >>> methods = {name: ms.MetaGradient(problem, method, sgd, steps=2) for name, method in named.items()}
        >>> batch = torch.randn(4, 5, 2), torch.randn(4, 5, 1)  # 4 tasks of 5 examples
        >>> rows = ms.compare(methods, ms.parameters(net), ms.Task(batch, batch))
        >>> [row.products for row in rows]
        [2, 0]
    """
    if not isinstance(methods, Mapping):
        raise MetastepError(
            f"methods is a {type(methods).__name__}: give a dict with a MetaGradient for each name, such as "
            '{"MAML": ms.MetaGradient(problem, ms.MAML(), inner, steps=5)}.'
        )
    if not methods:
        raise MetastepError("there is no method to compare: the dict is empty.")
    for name, method in methods.items():
        _require_gradient(name, method)
    require_order(meta, tasks)
    meta = tree_of(meta)
    reference = reference or next(iter(methods))
    if reference not in methods:
        raise MetastepError(f"the reference {reference!r} is not among the methods: {', '.join(methods)}.")
    tasks = stack(tasks) if isinstance(tasks, list) else tasks
    drawn = generators(others=True)
    progress(0, len(methods))
    exact = doubled(methods[reference](meta, tasks).grad)
    rows = []
    for name, method in methods.items():
        rows.append(_against(exact, drawn, name, method, meta, tasks, repeats))
        progress(len(rows), len(methods))
    return rows


def _require_gradient(name: str, given: Any) -> None:
    if not (callable(given) and hasattr(given, "estimator")):
        raise MetastepError(
            f"methods[{name!r}] is {given!r}, not a MetaGradient. Write "
            "ms.MetaGradient(problem, method, inner, steps=5)."
        )


def _against(
    exact: Tree, drawn: Generators, name: str, method: Gradient, meta: Tree, tasks: Any, repeats: int
) -> Comparison:
    with counting() as counts:
        method.estimator(meta, map_tree(lambda x: x[0], tasks))
    seconds = fastest(repeats, method, meta, tasks)
    set_generators(drawn)  # what draws random numbers has those of the reference, as far as it draws as many
    estimate, peak = peak_bytes(lambda: method(meta, tasks), tree_leaves(meta)[0].device)
    grad = doubled(estimate.grad)
    return Comparison(
        name,
        cosine=float(dot(grad, exact) / (norm(grad) * norm(exact))),
        relative_error=float(relative_change(grad, exact)),
        gradients=counts.gradients,
        products=counts.products,
        seconds=seconds,
        peak_bytes=peak,
        growth=None if estimate.growth is None else float(estimate.growth.median()),
    )
