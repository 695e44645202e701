"""Problems: few-shot learning over any module, and transformations from one problem to another."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from metastep.core.checks import require_few_shot, require_problem, require_takes, require_windows
from metastep.core.custom_losses import ByHand, Proximal, of_params_by_hand, pulled_by_hand
from metastep.core.guards import undrawn
from metastep.core.modules import apply, require_usable, theta_of
from metastep.core.optimizers import State
from metastep.core.options import Bound, require_number
from metastep.core.random import orders, stream
from metastep.core.trees import Tree, map_tree, shapes, subtract, tree_leaves
from metastep.core.value import Value
from metastep.core.windows import Loss, Problem, Window
from metastep.errors import MetastepError

__all__ = [
    "FewShot",
    "accept_rates",
    "accuracy",
    "adapt_only",
    "batch_by_batch",
    "every_window",
    "few_shot",
    "in_batches",
    "proximal",
    "with_rates",
]

Metric = Callable[[Tensor, Any], Tensor]  # (prediction, target) -> tensor


@dataclass(frozen=True)
class every_window:  # noqa: N801 - it reads as the function that it stands for
    """Let all windows follow one loss on the support of the task.

    Args:
        loss: A function (params, meta, support) -> scalar.

    Example:
        >>> import metastep as ms
        >>> windows = ms.every_window(lambda params, meta, batch: (params - batch).square())
        >>> len(windows(ms.Task(support=1.0, query=None), [2, 2]))
        2
    """

    loss: Loss

    def __post_init__(self) -> None:
        require_takes(self.loss, "the loss of the windows", "params, meta, batch")

    def __call__(self, task: Any, lengths: Sequence[int]) -> list[Window]:
        return [Window(self.loss, task.support, n) for n in lengths]


@dataclass(frozen=True)
class batch_by_batch:  # noqa: N801 - as above
    """Let window k follow one loss on the k-th batch of the support.

    `task.support` is a sequence with one batch for each window.

    Args:
        loss: A function (params, meta, batch) -> scalar.

    Example:
        >>> import metastep as ms
        >>> windows = ms.problems.batch_by_batch(lambda params, meta, batch: (params - batch).square())
        >>> [window.batch for window in windows(ms.Task(support=[1.0, 2.0], query=None), [1, 1])]
        [1.0, 2.0]
    """

    loss: Loss

    def __post_init__(self) -> None:
        require_takes(self.loss, "the loss of the windows", "params, meta, batch")

    def __call__(self, task: Any, lengths: Sequence[int]) -> list[Window]:
        if len(task.support) != len(lengths):
            raise MetastepError(
                f"{len(task.support)} support batches for {len(lengths)} windows: give each window its own, in a list "
                "of batches such as (x, y)."
            )
        return [Window(self.loss, batch, n) for batch, n in zip(task.support, lengths, strict=True)]


def in_batches(problem: Problem, size: int, axis: int = 0, shuffled: bool = False) -> Problem:
    """Return the same problem, whose windows follow mini-batches of the support, one after the other.

    Batch i has every n-th example from the i-th. If the support is sorted by class, as episodes are, every batch has as
    many examples of each class as possible.

    Args:
        problem: The problem with all examples in every window.
        size: Examples in a mini-batch.
        axis: Where examples are counted; 1 if all tasks are stacked.
        shuffled: Shuffle before every pass over the support. The order of a pass is always the same.

    Returns:
        The problem in mini-batches.

    Raises:
        MetastepError: `size` is below 1.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> problem = ms.problems.in_batches(ms.few_shot(torch.nn.Linear(2, 2), torch.nn.MSELoss()), size=5)
    """
    if size < 1:
        raise MetastepError(f"batch = {size} must be at least 1 example.")
    return problem._replace(windows=_InBatches(problem.windows, size, axis, shuffled))


@dataclass(frozen=True)
class _InBatches:
    windows: Callable[[Any, Sequence[int]], list[Window]]
    size: int
    axis: int
    shuffled: bool

    def __call__(self, task: Any, lengths: Sequence[int]) -> list[Window]:
        found, first = self.windows(task, lengths), tree_leaves(task.support)[0]
        n = -(-first.shape[self.axis] // self.size)  # batches in one pass over the support
        if self.shuffled and n > 1:
            passes = torch.arange(-(-len(found) // n), device=first.device)
            order = orders(stream(passes[:, None]), first.shape[self.axis])
            chosen = [order[k // n, k % n :: n] for k in range(len(found))]
            batches = [map_tree(lambda x, i=i: x.index_select(self.axis, i), task.support) for i in chosen]
        else:
            batches = [map_tree(lambda x, i=i: _every(x, n, i, self.axis), task.support) for i in range(n)]
        return [w._replace(batch=batches[k % len(batches)]) for k, w in enumerate(found)]


def _every(x: Tensor, n: int, first: int, axis: int) -> Tensor:
    """Return x[first::n] along an axis, contiguous, since kernels read pictures one after the other."""
    return x[(slice(None),) * axis + (slice(first, None, n),)].contiguous()


def few_shot(
    module: nn.Module, loss: Callable[[Any, Any], Tensor], metrics: Mapping[str, Metric] | None = None
) -> Problem:
    """Return few-shot learning with a module as a problem: φ starts from θ, the parameters of the module.

    A task is Task(support=(x, y), query=(x, y)). Frozen parameters and buffers of the module stay as they are.

    Args:
        module: Any `nn.Module`. θ is `ms.parameters(module)`.
        loss: A function (prediction, target) -> scalar.
        metrics: Functions (prediction, target) -> tensor by name, measured on the query.

    Returns:
        The problem. Its `made_of` is a `FewShot`.

    Raises:
        MetastepError: The module or the loss cannot be used; the message says why.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> net = torch.nn.Linear(4, 3)
        >>> problem = ms.few_shot(net, torch.nn.functional.cross_entropy, {"accuracy": ms.accuracy})
    """
    return FewShot(module, loss, metrics).problem()


@dataclass(frozen=True, eq=False)
class FewShot(Value):
    """Describe few-shot learning by a module, its loss and its metrics. `few_shot` makes the problem of it.

    Args:
        module: Any `nn.Module`.
        loss: A function (prediction, target) -> scalar.
        metrics: Functions (prediction, target) -> tensor by name, measured on the query.

    Raises:
        MetastepError: The module or the loss cannot be used; the message says why.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> problem = ms.few_shot(torch.nn.Linear(4, 3), torch.nn.functional.cross_entropy)
        >>> problem.made_of.loss is torch.nn.functional.cross_entropy
        True
    """

    module: nn.Module
    loss: Callable[[Any, Any], Tensor]
    metrics: Mapping[str, Metric] | None = None

    def __post_init__(self) -> None:
        require_usable(self.module)
        require_few_shot(self.loss, self.metrics)

    def problem(self) -> Problem:
        start, inner, outer = (_Part(self, name) for name in ("start", "inner_loss", "outer_loss"))
        return Problem(start, every_window(inner), outer, self)

    def start(self, meta: Tree, task: Any) -> Tree:
        return self.theta(meta)

    @cached_property
    def theta(self) -> Callable[[Tree], Tree]:
        return theta_of(self.module)

    def inner_loss(self, params: Tree, meta: Tree, batch: tuple[Any, Any]) -> Tensor:
        x, y = batch
        return self.loss(apply(self.module, params, x), y)

    def outer_loss(self, params: Tree, meta: Tree, task: Any) -> tuple[Tensor, dict[str, Tensor]]:
        x, y = task.query
        prediction = apply(self.module, params, x)
        return self.loss(prediction, y), _measured(self.metrics or {}, prediction, y)


@dataclass(frozen=True)
class _Part:
    """A method of a description; unlike a bound method, it equals that of an equal description."""

    of: FewShot
    name: str

    def __call__(self, *given: Any) -> Any:
        return getattr(self.of, self.name)(*given)


def few_shot_of(problem: Problem) -> FewShot | None:
    """Return what a problem was made of, if its functions still are those of few-shot learning."""
    made = problem.made_of
    return made if isinstance(made, FewShot) and problem == made.problem() else None


def _measured(metrics: Mapping[str, Metric], prediction: Any, target: Any) -> dict[str, Tensor]:
    seen = map_tree(lambda x: x.detach() if isinstance(x, Tensor) else x, prediction)
    return {name: metric(seen, target) for name, metric in metrics.items()}


def accuracy(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the share of predictions whose largest entry is the target's class.

    Args:
        prediction: Scores (examples, classes).
        target: Classes (examples,).

    Returns:
        A number from 0 to 1, as a tensor.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> print(ms.accuracy(torch.eye(2), torch.tensor([0, 0])))
        tensor(0.5000)
    """
    return (prediction.argmax(-1) == target).float().mean()


def adapt_only(problem: Problem, head: str | Callable[[str], bool]) -> Problem:
    """Return the same problem, in which φ is a part of θ. The rest stays in θ, and every loss reads it there.

    Args:
        problem: A problem whose φ is a dict of tensors by name.
        head: How the names of the adapted parameters begin, or a function of a name that says whether it is adapted.

    Returns:
        The problem with a smaller φ.

    Raises:
        MetastepError: `head` is neither text nor a function, or accepts no name.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> net = torch.nn.Linear(4, 3)
        >>> problem = ms.problems.adapt_only(ms.few_shot(net, torch.nn.functional.cross_entropy), head="bias")
        >>> list(problem.start(ms.parameters(net), None))
        ['bias']
    """
    is_head = accepts(head)

    def start(meta: Tree, task: Any) -> Tree:
        chosen = {name: p for name, p in _params(problem.start(meta, task)).items() if is_head(name)}
        if not chosen:
            raise MetastepError(
                f"no parameter is left to adapt: `head` accepts none of {', '.join(meta)}. Let it accept some of them."
            )
        return chosen

    def whole(loss: Loss) -> Loss:
        return lambda params, meta, batch: loss({**meta, **params}, meta, batch)

    windows = with_losses(problem, lambda loss, task: whole(loss)).windows
    return Problem(start, windows, whole(problem.outer_loss))


def accepts(head: str | Callable[[str], bool]) -> Callable[[str], bool]:
    """Return whether a parameter of some name is adapted, as a function: `head` is one, or how such names begin."""
    if isinstance(head, str):
        return lambda name: name.startswith(head)
    if not callable(head):
        raise MetastepError(
            f"head = {head!r} must say which parameters are adapted. Give the beginning of their names, such as "
            '"head", or a function of a name.'
        )
    return head


def accept_rates(problem: Problem) -> Problem:
    """Return the same problem for meta = {"params": θ, "rates": …}. Its losses see θ alone.

    Learned rates are read by the inner optimizer, such as `SGD(lr=lambda meta, step: meta["rates"])`.

    Args:
        problem: The problem for θ alone.

    Returns:
        The problem with room for rates.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> net = torch.nn.Linear(4, 3)
        >>> problem = ms.problems.accept_rates(ms.few_shot(net, torch.nn.functional.cross_entropy))
        >>> meta = {"params": ms.parameters(net), "rates": torch.tensor(0.1)}
        >>> list(problem.start(meta, None))
        ['weight', 'bias']
    """
    return accept_more(problem, lambda meta, task: problem.start(meta["params"], task))


def params_of(meta: Tree) -> Tree:
    """Return θ alone."""
    return meta["params"] if isinstance(meta, dict) and isinstance(meta.get("params"), dict) else meta


def accept_more(problem: Problem, start: Callable[[Tree, Any], Tree | State]) -> Problem:
    """Return the same problem for a meta in which θ is called "params", and which has more. Losses see θ alone."""

    def checked(meta: Tree, task: Any) -> Tree | State:
        if not (isinstance(meta, dict) and "params" in meta):
            raise MetastepError(
                "meta is θ alone, but this method also learns rates or keeps an optimizer's memory. Make meta with "
                "gradient.init(net)."
            )
        return start(meta, task)

    windows = with_losses(problem, lambda loss, task: _of_params(loss)).windows
    return Problem(checked, windows, lambda params, meta, task: problem.outer_loss(params, meta["params"], task))


def _of_params(loss: Loss) -> Loss:
    def value(params: Tree, meta: Tree, batch: Any) -> Tensor:
        return loss(params, meta["params"], batch)

    return of_params_by_hand(value, loss) if isinstance(loss, ByHand) else value


def with_rates(
    params: Tree, lr: float, steps: int | None = None, head: str | Callable[[str], bool] | None = None
) -> dict[str, Tree]:
    """Return meta = {"params": θ, "rates": …}, with a rate for each entry of each tensor (Meta-SGD).

    `MetaGradient.init` does so for the methods that learn rates.

    Args:
        params: θ, by name.
        lr: Where every rate starts.
        steps: With a number of inner steps, each tensor has one rate for each step instead (MAML++).
        head: Which parameters are adapted, as for `adapt_only`. The others have no rates.

    Returns:
        θ and the rates. Both require grad.

    Raises:
        MetastepError: `lr` is not a finite number, or is negative.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> meta = ms.problems.with_rates(ms.parameters(torch.nn.Linear(4, 3)), lr=0.1, steps=5)
        >>> meta["rates"]["weight"].shape
        torch.Size([5])
    """
    require_number(lr, Bound(ge=0), "lr")
    per_tensor = torch.full_like if steps is None else lambda p, lr: p.new_full((steps,), lr)
    adapted = {name: p for name, p in params.items() if accepts(head)(name)} if head else params
    with torch.no_grad():
        return {"params": params, "rates": map_tree(lambda p: per_tensor(p, lr).requires_grad_(), adapted)}


def proximal(problem: Problem, strength: float) -> Problem:
    """Return the same problem, whose inner losses also pull φ back to its start: + ½ · strength · ‖φ − φ₁(θ)‖².

    Args:
        problem: The problem without that term.
        strength: How strongly φ is pulled.

    Returns:
        The problem with that term in every window.

    Raises:
        MetastepError: `strength` is not above 0.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> net = torch.nn.Linear(4, 3)
        >>> problem = ms.problems.proximal(ms.few_shot(net, torch.nn.functional.cross_entropy), strength=2.0)
    """
    if not strength > 0:
        raise MetastepError(f"strength = {strength} must be above 0: the proximal term pulls φ back to its start.")

    def pulled(loss: Loss, task: Any) -> Loss:
        start = undrawn(lambda meta: _params(problem.start(meta, task)), "the start of a problem")

        def regularised(params: Tree, meta: Tree, batch: Any) -> Tensor:
            away = [x.reshape(-1) for x in tree_leaves(subtract(params, start(meta)))]
            return loss(params, meta, batch) + strength / 2 * sum(torch.vdot(x, x).real for x in away)

        regularised.parts = Proximal(loss, start, strength)  # type: ignore[attr-defined]
        return pulled_by_hand(regularised, loss, start, strength) if isinstance(loss, ByHand) else regularised

    return with_losses(problem, pulled)


def require_shared_space(params: Tree, meta: Tree, what: str) -> None:
    """Refuse a φ that is not made of tensors of θ."""
    if Counter(shapes(params)) - Counter(shapes(meta)):
        raise MetastepError(
            f"{what} needs φ to start from θ, but φ has shapes {shapes(params)} and θ has {shapes(meta)}. It leaves "
            "∂²L/∂θ∂φ out, so it cannot learn this θ. Use ms.MultiStep, ms.MAML, ms.methods.HFMAML or "
            "ms.methods.GGSMAML."
        )


def _params(start: Tree | State) -> Tree:
    return start.params if isinstance(start, State) else start


def with_losses(problem: Problem, change: Callable[[Loss, Any], Loss]) -> Problem:
    require_problem(problem)

    def windows(task: Any, lengths: Sequence[int]) -> list[Window]:
        found = require_windows(problem.windows(task, lengths))
        return [window._replace(loss=change(window.loss, task)) for window in found]

    return problem._replace(windows=windows, made_of=None)
