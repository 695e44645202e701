"""Problems: few-shot learning over any module, and transformations from one problem to another."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from metastep.core.by_hand import ByHand, of_params_by_hand, pulled_by_hand
from metastep.core.checks import require_few_shot, require_problem, require_windows
from metastep.core.dynamics import State
from metastep.core.modules import apply, held, require_usable, theta_of
from metastep.core.noise import refused
from metastep.core.random import orders, stream
from metastep.core.rates import require_rates
from metastep.core.trees import Tree, dot, map_tree, shapes, subtract, tree_leaves
from metastep.core.windows import Loss, Problem, Window
from metastep.errors import MetastepError

Metric = Callable[[Tensor, Any], Tensor]  # (prediction, target) -> tensor


def every_window(loss: Loss) -> Callable[[Any, Sequence[int]], list[Window]]:
    """All windows follow one loss(params, meta, support)."""
    return lambda task, lengths: [Window(loss, task.support, n) for n in lengths]


def batch_by_batch(loss: Loss) -> Callable[[Any, Sequence[int]], list[Window]]:
    """Window k follows the loss on the k-th batch: `task.support` is a sequence with one batch for each window."""

    def windows(task: Any, lengths: Sequence[int]) -> list[Window]:
        if len(task.support) != len(lengths):
            raise MetastepError(
                f"{len(task.support)} support batches for {len(lengths)} windows: give each window its own, in a list "
                "of batches such as (x, y)."
            )
        return [Window(loss, batch, n) for batch, n in zip(task.support, lengths, strict=True)]

    return windows


def in_batches(problem: Problem, size: int, axis: int = 0, shuffled: bool = False) -> Problem:
    """Each window follows a mini-batch of the support, (x, y) or the like: every n-th of it, one after the other.

    Where the support is sorted by class, as episodes are, every batch has as many of each class as can be.
    axis: where pictures are counted; 1 if all tasks are stacked.
    shuffled: before every pass over the support; the order of a pass is always the same.
    """
    if size < 1:
        raise MetastepError(f"mini-batches of {size} pictures: each has at least one.")

    def windows(task: Any, lengths: Sequence[int]) -> list[Window]:
        found, first = problem.windows(task, lengths), tree_leaves(task.support)[0]
        n = -(-first.shape[axis] // size)  # batches in one pass over the support
        if shuffled and n > 1:
            passes = torch.arange(-(-len(found) // n), device=first.device)
            order = orders(stream(passes[:, None]), first.shape[axis])
            chosen = [order[k // n, k % n :: n] for k in range(len(found))]
            batches = [map_tree(lambda x, i=i: x.index_select(axis, i), task.support) for i in chosen]
        else:
            batches = [map_tree(lambda x, i=i: _every(x, n, i, axis), task.support) for i in range(n)]
        return [w._replace(batch=batches[k % len(batches)]) for k, w in enumerate(found)]

    return problem._replace(windows=windows)


def _every(x: Tensor, n: int, first: int, axis: int) -> Tensor:
    """x[first::n] along an axis, as one piece of memory: kernels read pictures one after the other"""
    return x[(slice(None),) * axis + (slice(first, None, n),)].contiguous()


def few_shot(
    module: nn.Module, loss: Callable[[Any, Any], Tensor], metrics: Mapping[str, Metric] | None = None
) -> Problem:
    """φ starts from θ, the parameters of `module`; a task is ((x, y) to adapt to, (x, y) to be judged by).

    θ is `parameters_of(module)`; frozen parameters and buffers of the module are held.
    """
    require_usable(module)
    require_few_shot(loss, metrics)
    theta = theta_of(module)

    def inner_loss(params: Tree, meta: Tree, batch: tuple[Any, Any]) -> Tensor:
        del meta
        x, y = batch
        with held(module):
            return loss(apply(module, params, x), y)

    def outer_loss(params: Tree, meta: Tree, task: Any) -> tuple[Tensor, dict[str, Tensor]]:
        del meta
        x, y = task.query
        with held(module):
            prediction = apply(module, params, x)
            return loss(prediction, y), _measured(metrics or {}, prediction, y)

    return Problem(lambda meta, task: theta(meta), every_window(inner_loss), outer_loss)


def _measured(metrics: Mapping[str, Metric], prediction: Any, target: Any) -> dict[str, Tensor]:
    seen = map_tree(lambda x: x.detach() if isinstance(x, Tensor) else x, prediction)
    return {name: metric(seen, target) for name, metric in metrics.items()}


def accuracy(prediction: Tensor, target: Tensor) -> Tensor:
    return (prediction.argmax(-1) == target).float().mean()


def adapt_only(problem: Problem, head: Callable[[str], bool]) -> Problem:
    """φ is the part of θ whose names `head` accepts; the rest stays in θ, and enters every loss from there."""
    if not callable(head):
        raise MetastepError(
            f"head = {head!r} is not a function: give one that says of a parameter's name whether it is adapted, such "
            f"as lambda name: name.startswith({str(head)!r})."
        )

    def start(meta: Tree, task: Any) -> Tree:
        chosen = {name: p for name, p in _params(problem.start(meta, task)).items() if head(name)}
        if not chosen:
            raise MetastepError(f"no parameter is left to adapt: `head` accepts none of {', '.join(meta)}.")
        return chosen

    def whole(loss: Loss) -> Loss:
        return lambda params, meta, batch: loss({**meta, **params}, meta, batch)

    windows = with_losses(problem, lambda loss, task: whole(loss)).windows
    return Problem(start, windows, whole(problem.outer_loss))


def room_for_rates(problem: Problem) -> Problem:
    """The same problem for meta = {"params": θ, "rates": …}; the dynamics read the rates."""
    return room_for_more(problem, lambda meta, task: problem.start(meta["params"], task))


def params_of(meta: Tree) -> Tree:
    """θ alone"""
    return meta["params"] if isinstance(meta, dict) and isinstance(meta.get("params"), dict) else meta


def room_for_more(problem: Problem, start: Callable[[Tree, Any], Tree | State]) -> Problem:
    """The same problem for a meta in which θ is called "params", and which has more: losses see θ alone"""

    def checked(meta: Tree, task: Any) -> Tree | State:
        if not (isinstance(meta, dict) and "params" in meta):
            raise MetastepError(
                "meta is θ alone, and needs more: with_rates(θ, lr) for rates that are learned (Meta-SGD; MAML++, with "
                "steps), with_memory(θ, dynamics) for Reptile with carried=True."
            )
        return start(meta, task)

    windows = with_losses(problem, lambda loss, task: _of_params(loss)).windows
    return Problem(checked, windows, lambda params, meta, task: problem.outer_loss(params, meta["params"], task))


def _of_params(loss: Loss) -> Loss:
    def value(params: Tree, meta: Tree, batch: Any) -> Tensor:
        return loss(params, meta["params"], batch)

    return of_params_by_hand(value, loss) if isinstance(loss, ByHand) else value


def with_rates(
    params: Tree, lr: float, steps: int | None = None, head: Callable[[str], bool] | None = None
) -> dict[str, Tree]:
    """θ beside rates to learn: one for each entry of a tensor (Meta-SGD), or for each tensor and step (MAML++).

    head: only what it accepts is adapted, as by `adapt_only`, and has rates.
    """
    require_rates(lr=lr)
    per_tensor = torch.full_like if steps is None else lambda p, lr: p.new_full((steps,), lr)
    adapted = {name: p for name, p in params.items() if head(name)} if head else params
    with torch.no_grad():
        return {"params": params, "rates": map_tree(lambda p: per_tensor(p, lr), adapted)}


def proximal(problem: Problem, strength: float) -> Problem:
    """Every window also pulls φ back to where it started: + ½ · strength · ‖φ − φ₁(θ)‖²"""
    if not strength > 0:
        raise MetastepError(f"strength = {strength}: the proximal term must pull, so it must be above 0.")

    def pulled(loss: Loss, task: Any) -> Loss:
        start = refused(lambda meta: _params(problem.start(meta, task)), "the start of a problem")

        def regularised(params: Tree, meta: Tree, batch: Any) -> Tensor:
            away = subtract(params, start(meta))
            return loss(params, meta, batch) + strength / 2 * dot(away, away)

        return pulled_by_hand(regularised, loss, start, strength) if isinstance(loss, ByHand) else regularised

    return with_losses(problem, pulled)


def require_shared_space(params: Tree, meta: Tree, what: str) -> None:
    """φ must be made of tensors of θ"""
    if Counter(shapes(params)) - Counter(shapes(meta)):
        raise MetastepError(
            f"{what} needs φ to start from θ, but φ has shapes {shapes(params)} and θ has {shapes(meta)}: it knows "
            "nothing of ∂²L/∂θ∂φ, so it cannot learn this θ. Use multi_step, maml, hf_maml or ggs_maml, which do."
        )


def _params(start: Tree | State) -> Tree:
    return start.params if isinstance(start, State) else start


def with_losses(problem: Problem, change: Callable[[Loss, Any], Loss]) -> Problem:
    require_problem(problem)

    def windows(task: Any, lengths: Sequence[int]) -> list[Window]:
        found = require_windows(problem.windows(task, lengths))
        return [window._replace(loss=change(window.loss, task)) for window in found]

    return problem._replace(windows=windows)
