"""Toy problems, methods and inner optimizers, in float64: tests are products of these tables."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

import metastep as ms
from metastep.core import registry
from metastep.core.trees import Tree, map_tree, norm, subtract
from metastep.core.windows import InnerLoop, Steps
from metastep.step.mapped import mapped

STEPS = 8


class Case(NamedTuple):
    """A problem, θ, and three stacked tasks."""

    problem: ms.Problem
    meta: Tree
    tasks: Any


class Restart(NamedTuple):
    """A task whose φ starts anew, whatever θ is."""

    start: Tree
    support: Tree
    query: Tree


def randn(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64)


def regression() -> Case:
    """MAML type: φ starts from θ, a small tanh network"""
    net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    problem = ms.few_shot(net, F.mse_loss, {"largest": lambda prediction, target: (prediction - target).abs().amax()})
    return Case(
        problem, ms.parameters(net), ms.Task((randn(3, 6, 2), randn(3, 6, 1)), (randn(3, 7, 2), randn(3, 7, 1)))
    )


def convolution() -> Case:
    """MAML type: convolution and BatchNorm on batch statistics"""
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2, padding=1),
        nn.BatchNorm2d(3, track_running_stats=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(48, 3),
    ).double()
    labels = torch.arange(3).repeat(3, 2)
    problem = ms.few_shot(net, F.cross_entropy, {"accuracy": ms.accuracy})
    return Case(problem, ms.parameters(net), ms.Task((randn(3, 6, 1, 8, 8), labels), (randn(3, 6, 1, 8, 8), labels)))


def meta_network() -> Case:
    """θ is disjoint from φ: a network weighs the features of a penalty on φ, which starts anew for each task"""

    def inner(params: Tree, meta: Tree, batch: Any) -> torch.Tensor:
        x, y = batch
        weights = F.softplus(meta["weigh"] @ x.T).mean(-1)
        return (
            F.mse_loss(torch.tanh(x @ params["w"]) @ params["v"], y) + (weights * params["w"].square().mean(-1)).sum()
        )

    def outer(params: Tree, meta: Tree, task: Any) -> torch.Tensor:
        x, y = task.query
        return F.mse_loss(torch.tanh(x @ params["w"]) @ params["v"], y)

    problem = ms.Problem(lambda meta, task: task.start, ms.every_window(inner), outer)
    tasks = Restart(
        {"w": randn(3, 4, 5), "v": randn(3, 5, 2)}, (randn(3, 6, 4), randn(3, 6, 2)), (randn(3, 6, 4), randn(3, 6, 2))
    )
    return Case(problem, {"weigh": randn(4, 4)}, tasks)


def example_weights() -> Case:
    """Hyper-parameter learning: θ weighs the training examples, and enters the outer loss directly too"""

    def inner(params: Tree, meta: Tree, batch: Any) -> torch.Tensor:
        x, y = batch
        return (torch.sigmoid(meta["weight"]) * (x @ params["w"] - y).square()).mean()

    def outer(params: Tree, meta: Tree, task: Any) -> torch.Tensor:
        x, y = task.query
        return (x @ params["w"] - y).square().mean() + 0.1 * meta["weight"].square().mean()

    problem = ms.Problem(lambda meta, task: {"w": meta["start"]}, ms.every_window(inner), outer)
    tasks = ms.Task((randn(3, 6, 4), randn(3, 6)), (randn(3, 6, 4), randn(3, 6)))
    return Case(problem, {"weight": randn(6), "start": randn(4)}, tasks)


def two_losses() -> Case:
    """As in L2T-ww: windows on a guided loss that θ shapes, then one on the task's own loss"""

    def guided(params: Tree, meta: Tree, batch: Any) -> torch.Tensor:
        x, _ = batch
        return (torch.sigmoid(meta["what"]) * (torch.tanh(x @ params["w"]) - x[:, :3]).square()).mean()

    def own(params: Tree, meta: Tree, batch: Any) -> torch.Tensor:
        del meta
        x, y = batch
        return F.cross_entropy(torch.tanh(x @ params["w"]), y)

    def windows(task: Any, lengths: Any) -> list[ms.Window]:
        return [*(ms.Window(guided, task.support, n) for n in lengths), ms.Window(own, task.support, 1)]

    problem = ms.Problem(lambda meta, task: task.start, windows, lambda p, m, task: own(p, m, task.query))
    batch = (randn(3, 6, 4), torch.arange(3).repeat(3, 2))
    return Case(problem, {"what": randn(3)}, Restart({"w": randn(3, 4, 3)}, batch, batch))


PROBLEMS: dict[str, Callable[[], Case]] = {
    f.__name__: f for f in (regression, convolution, meta_network, example_weights, two_losses)
}


def own_step(params: Tree, memory: Tree, grad: Tree, meta: Tree, t: int) -> tuple[Tree, Tree]:
    """A user's optimizer: steps of bounded length, with a decaying trace"""
    del meta
    trace = map_tree(lambda m, g: 0.5 * m + g, memory, grad)
    return map_tree(lambda p, m: p - 0.1 / (t + 1) * torch.tanh(m), params, trace), trace


class Bounded(ms.SGD):
    """A user's SGD whose gradients are bounded: no longer linear in them"""

    def advance(self, state: ms.optimizers.State, grad: Tree, meta: Tree, steps: int) -> ms.optimizers.State:
        return super().advance(state, map_tree(torch.tanh, grad), meta, steps)


class Bounding(NamedTuple):
    """The same around any inner optimizer"""

    inner: ms.optimizers.InnerOptimizer

    def init(self, params: Tree) -> ms.optimizers.State:
        return self.inner.init(params)

    def advance(self, state: ms.optimizers.State, grad: Tree, meta: Tree, steps: int) -> ms.optimizers.State:
        return self.inner.advance(state, map_tree(torch.tanh, grad), meta, steps)


class Delegating:
    """The same, which hands on all that it is asked for"""

    def __init__(self, inner: ms.optimizers.InnerOptimizer) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def advance(self, state: ms.optimizers.State, grad: Tree, meta: Tree, steps: int) -> ms.optimizers.State:
        return self.inner.advance(state, map_tree(torch.tanh, grad), meta, steps)


DYNAMICS: dict[str, ms.optimizers.InnerOptimizer] = {
    "sgd": ms.SGD(0.1),
    "momentum": ms.SGD(0.05, momentum=0.9, weight_decay=1e-2),
    "tensor rate": ms.SGD(torch.tensor(0.05, dtype=torch.float64), momentum=0.9, weight_decay=1e-2),
    "dampened": ms.SGD(0.05, momentum=0.9, dampening=0.3, weight_decay=1e-2),
    "nesterov": ms.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "scheduled": ms.SGD(lambda meta, step: 0.1 * 0.8**step, momentum=0.5),
    "adam": ms.Adam(0.02, weight_decay=1e-2),
    "adamw": ms.AdamW(0.02),
    "rmsprop": ms.RMSprop(0.01, alpha=0.9, momentum=0.5, weight_decay=1e-2),
    "bounded": Bounded(0.1, momentum=0.9),
    "bounding": Bounding(ms.SGD(0.1, momentum=0.9)),
    "delegating": Delegating(ms.SGD(0.1, momentum=0.9)),
    "own": ms.StepFunction(own_step, lambda params: map_tree(torch.zeros_like, params)),
}
OWN = ("bounded", "bounding", "delegating", "own")  # written by a user: they see gradients as they are


def is_head(name: str) -> bool:
    """Whether a parameter belongs to the last layer of `regression` or of `convolution`"""
    return name.startswith(("2.", "4."))


# Every other registered method is tested with the options that it has by itself.
METHODS: dict[str, ms.methods.Method] = {
    "multi_step": ms.MultiStep(window=3),
    "truncated": ms.methods.Truncated(depth=2),
    "anil": ms.methods.ANIL(head=is_head),
    "imaml": ms.IMAML(strength=1.5, window=2),
    "hf_maml": ms.methods.HFMAML(delta=0.01),
    "ggs_maml": ms.methods.GGSMAML(samples=4, window=2),
    "es_maml": ms.methods.ESMAML(samples=16, window=4),
    "maml_pp": ms.methods.MAMLPP(window=2),
}
# All other methods are tested for giving the derivative of the outer loss.
APPROXIMATE = tuple(name for name in registry.names("method") if not registry.named("method", name).is_exact)
RANDOM = ("ggs_maml", "es_maml")  # they draw directions


def method(name: str) -> ms.methods.Method:
    """The registered method of this name"""
    made: ms.methods.Method = METHODS[name] if name in METHODS else registry.named("method", name)()
    return made


@dataclass(frozen=True, repr=False)
class Swept(ms.methods.Method):
    """A user's method: the reverse sweep with all of its options"""

    window: Steps = 1
    curvature: ms.curvature.Curvature = ms.curvature.exact
    depth: int | None = None
    weights: tuple[float, ...] | None = None

    def estimator(self, loop: InnerLoop) -> ms.estimators.Estimator:
        return ms.estimators.unrolled(loop, self.curvature, self.depth, self.weights)


def by_autograd(gradient: ms.MetaGradient, meta: Tree, tasks: Any) -> ms.Estimate:
    """The same inner loop and outer loss, differentiated through the stored unroll"""
    reference = ms.methods.Reference(weights=gradient.estimator.weights)
    return mapped(reference, gradient.loop, gradient.chunk_size)(meta, tasks)


def case(name: str, seed: int = 0) -> Case:
    torch.manual_seed(seed)
    return PROBLEMS[name]()


def first(tasks: Any) -> Any:
    return map_tree(lambda x: x[0], tasks)


@torch.no_grad()
def relative_error(a: Tree, b: Tree) -> float:
    return float(norm(subtract(a, b)) / norm(b))
