"""Five small problems, each by metastep and by the loop that people write by hand.

They are small because they are counted and compared, not timed: all of them together take seconds on one core.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import metastep as ms
from metastep.core.entrywise import root

Params = dict[str, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
Step = Callable[[], tuple[Tensor, Params]]  # () -> outer loss, meta-gradient; it moves θ


class Work(NamedTuple):
    """One meta-step: a net, its data and its inner loop."""

    net: nn.Module
    loss: Loss
    inner: ms.SGD | ms.Adam
    steps: int
    tasks: ms.Task
    weighted: bool = False  # θ weighs the examples, and φ starts from the net; else θ is where φ starts

    @property
    def meta(self) -> Params:
        """θ before the first step, in tensors of its own."""
        x, _ = self.tasks.support
        if self.weighted:
            return {"weights": torch.linspace(-1, 1, x.shape[1], dtype=x.dtype, device=x.device).requires_grad_()}
        return {name: p.clone().requires_grad_() for name, p in self.start.items()}

    @property
    def start(self) -> Params:
        return {name: p.detach() for name, p in self.net.named_parameters()}


# ---- the two ways


def by_metastep(work: Work, window: int) -> Step:
    """Return the meta-step as a user writes it."""
    problem = weighted_problem(work) if work.weighted else ms.few_shot(work.net, work.loss)
    gradient = ms.MetaGradient(problem, ms.MultiStep(window), work.inner, steps=work.steps)
    meta = gradient.init(work.meta)
    step = ms.MetaStep(gradient, meta, outer_optimizer(meta))

    def measured() -> tuple[Tensor, Params]:
        estimate = step(work.tasks)
        return estimate.loss, estimate.grad

    return measured


def outer_optimizer(meta: Params) -> torch.optim.Optimizer:
    """Return the outer optimizer of both ways: one operation for each tensor, next to nothing."""
    return torch.optim.SGD(meta.values(), lr=1e-3)


def weighted_problem(work: Work) -> ms.Problem:
    start = work.start

    def inner(params: Params, meta: Params, batch: tuple[Tensor, Tensor]) -> Tensor:
        return weighted(ms.apply(work.net, params, batch[0]), batch[1], meta)

    def outer(params: Params, meta: Params, task: ms.Task) -> Tensor:
        del meta
        x, y = task.query
        return work.loss(ms.apply(work.net, params, x), y)

    return ms.Problem(lambda meta, task: start, ms.every_window(inner), outer)


def by_hand(work: Work, window: int) -> Step:
    """Return the loop that everybody writes: task after task, a graph through all steps, one backward for each."""
    meta = work.meta
    optimizer = outer_optimizer(meta)

    def step() -> tuple[Tensor, Params]:
        (xs, ys), (xq, yq) = work.tasks
        losses, totals = [], [torch.zeros_like(x) for x in meta.values()]
        for support, query in zip(zip(xs, ys, strict=True), zip(xq, yq, strict=True), strict=True):
            params = adapted(work, window, meta, support)
            loss = work.loss(functional_call(work.net, params, query[0]), query[1])
            grads = torch.autograd.grad(loss, list(meta.values()))
            totals = [total + g / len(xs) for total, g in zip(totals, grads, strict=True)]
            losses.append(loss.detach())
        for x, total in zip(meta.values(), totals, strict=True):
            x.grad = total
        optimizer.step()
        return torch.stack(losses).mean(), dict(zip(meta, totals, strict=True))

    return step


def adapted(work: Work, window: int, meta: Params, batch: tuple[Tensor, Tensor]) -> Params:
    """Return φ after the inner loop, with its graph; `window` steps share a gradient."""
    start = work.start if work.weighted else meta
    params = [p.requires_grad_() for p in start.values()]
    memory = [[torch.zeros_like(p) for p in params] for _ in range(2)]
    for k in range(work.steps):
        if k % window == 0:
            prediction = functional_call(work.net, dict(zip(start, params, strict=True)), batch[0])
            loss = weighted(prediction, batch[1], meta) if work.weighted else work.loss(prediction, batch[1])
            grads = torch.autograd.grad(loss, params, create_graph=True)
        params, memory = moved(work.inner, params, memory, grads, k + 1)
    return dict(zip(start, params, strict=True))


def moved(
    inner: ms.SGD | ms.Adam, params: list[Tensor], memory: list[list[Tensor]], grads: tuple[Tensor, ...], step: int
) -> tuple[list[Tensor], list[list[Tensor]]]:
    m, v = memory
    if isinstance(inner, ms.SGD):
        m = [inner.momentum * a + g for a, g in zip(m, grads, strict=True)] if inner.momentum else list(grads)
        return [p - inner.lr * a for p, a in zip(params, m, strict=True)], [m, v]
    b1, b2 = inner.betas
    m = [b1 * a + (1 - b1) * g for a, g in zip(m, grads, strict=True)]
    v = [b2 * a + (1 - b2) * g * g for a, g in zip(v, grads, strict=True)]
    sizes = [root(a / (1 - b2**step)) + inner.eps for a in v]  # by hand too, a ReLU that is off would give NaN
    return [p - inner.lr / (1 - b1**step) * a / s for p, a, s in zip(params, m, sizes, strict=True)], [m, v]


def weighted(prediction: Tensor, target: Tensor, meta: Params) -> Tensor:
    return (F.cross_entropy(prediction, target, reduction="none") * meta["weights"].sigmoid()).mean()


# ---- nets


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:  # (examples, places, width)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        share = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
        out: Tensor = self.out((share @ v).transpose(1, 2).flatten(2))
        return out


class Transformer(nn.Module):
    """One block of attention and one of features, on sequences of tokens."""

    def __init__(self, tokens: int, width: int, places: int, classes: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(tokens, width), nn.Parameter(0.1 * torch.randn(places, width))
        self.before_attention, self.attention = nn.LayerNorm(width), Attention(width, heads=2)
        self.before_features = nn.LayerNorm(width)
        self.features = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.place
        x = x + self.attention(self.before_attention(x))
        x = x + self.features(self.before_features(x))
        out: Tensor = self.head(x.mean(1))
        return out


def conv4(channels: int, filters: int, ways: int) -> nn.Module:
    blocks: list[nn.Module] = []
    for given in (channels, filters, filters, filters):
        norm = nn.BatchNorm2d(filters, track_running_stats=False)
        blocks += [nn.Conv2d(given, filters, 3, padding=1), norm, nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(filters, ways))


# ---- the five


def regression(inner: ms.SGD | ms.Adam) -> Work:
    net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
    batches = [(torch.randn(4, 10, 1), torch.randn(4, 10, 1)) for _ in range(2)]
    return Work(net, F.mse_loss, inner, 8, ms.Task(*batches))


def hyper_cleaning() -> Work:
    batches = [(torch.randn(1, 100, 64), torch.randint(10, (1, 100))) for _ in range(2)]
    return Work(nn.Linear(64, 10), F.cross_entropy, ms.SGD(0.1, momentum=0.9), 40, ms.Task(*batches), weighted=True)


def transformer() -> Work:
    batches = [(torch.randint(20, (2, 10, 8)), torch.randint(5, (2, 10))) for _ in range(2)]
    return Work(Transformer(20, 16, 8, 5), F.cross_entropy, ms.SGD(0.01, momentum=0.9), 8, ms.Task(*batches))


def pictures() -> Work:
    batches = [(torch.randn(2, n, 1, 16, 16), torch.arange(5).repeat(2, n // 5)) for n in (5, 15)]
    return Work(conv4(1, 8, 5), F.cross_entropy, ms.SGD(0.1, momentum=0.9), 8, ms.Task(*batches))


PROBLEMS: dict[str, Callable[[], Work]] = {
    "MLP, SGD": lambda: regression(ms.SGD(0.01, momentum=0.9)),
    "MLP, Adam": lambda: regression(ms.Adam(0.01)),
    "hyper-cleaning": hyper_cleaning,
    "transformer": transformer,
    "Conv4": pictures,
}


def work_of(name: str, dtype: torch.dtype = torch.float32) -> Work:
    """Return the problem of this name, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        work = PROBLEMS[name]()
    tasks = ms.Task(*([x.to(dtype) if x.is_floating_point() else x for x in part] for part in work.tasks))
    return work._replace(net=work.net.to(dtype), tasks=tasks)
