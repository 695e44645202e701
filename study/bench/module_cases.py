"""Workloads of `python -m study bench modules`: nets that are not differentiated by hand, and loops by hand.

A subject knows its hand-written loop, and what a `MetaGradient` of it is made of. An implementation makes a step of a
subject and a method; a new one is one more entry of `IMPLEMENTATIONS`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

import metastep as ms
from metastep.core.counting import peak_bytes
from metastep.core.modules import plain_recurrence
from metastep.errors import MetastepError
from metastep.step.capture import unit
from study.experiments.other_modules import EXAMPLES, RATE, STEPS, SUBJECTS, TASKS, WAYS
from study.problems import Attention, Params, Step, Work, by_hand, conv4, moved, weighted, weighted_problem

CPU = torch.device("cpu")
WINDOWS = {"exact": 1, "window 4": 4}
METHODS: dict[str, ms.methods.Method] = {name: ms.MultiStep(window) for name, window in WINDOWS.items()}
IMPLICIT = ms.IMAML(strength=2.0, solver=ms.solvers.ConjugateGradient(steps=10))


class Subject(NamedTuple):
    """One workload."""

    methods: dict[str, ms.methods.Method]
    hand: Callable[[str], Step]  # the name of a method -> its hand-written meta-gradient
    problem: ms.Problem
    inner: Any
    steps: int
    meta: Params
    tasks: ms.Task
    work: Work | None = None  # if there is one

    def gradient(self, method: str, **options: Any) -> ms.MetaGradient:
        return ms.MetaGradient(self.problem, self.methods[method], self.inner, steps=self.steps, **options)


def by_gradient(subject: Subject, method: str, **options: Any) -> Step:
    """Return one call of the door. Its `path` says which engine ran."""
    gradient = subject.gradient(method, **options)

    def step() -> tuple[Tensor, Params]:
        estimate = gradient(subject.meta, subject.tasks)
        step.path = gradient.path  # type: ignore[attr-defined]
        return estimate.loss, estimate.grad

    return step


def states_alone(subject: Subject, method: str) -> Step:
    """Return the same, task by task, in the least memory that holds the states of all windows."""
    budget, found = 8 * peak_bytes(subject.hand(method), device_of(subject))[1], None
    while budget := budget // 2:
        step = by_gradient(subject, method, chunk_size=1, memory=budget)
        step()
        is_kept = all(words in step.path for words in ("states of all", "in memory"))  # type: ignore[attr-defined]
        if found and not is_kept:
            return found
        found = step if is_kept else None
    raise MetastepError("no budget keeps states alone.")


def in_a_graph(subject: Subject, method: str) -> Step:
    """Return the same, captured in a CUDA graph as a MetaStep does it."""
    gradient = subject.gradient(method)

    def estimated(state: tuple[()], *given: Any) -> tuple[tuple[()], tuple[Tensor, Params]]:
        found = gradient.unchecked(*given)
        return state, (found.loss, found.grad)

    captured = unit(estimated, device_of(subject))

    def step() -> tuple[Tensor, Params]:
        found: tuple[Tensor, Params] = captured((), subject.meta, subject.tasks)[1]
        step.path = captured.path  # type: ignore[attr-defined]
        return found

    return step


def by_torch_func(subject: Subject, method: str) -> Step:
    """Return the same as it is written by hand with torch.func."""
    work, window = work_in(subject), WINDOWS[method]
    mapped = torch.func.vmap(torch.func.grad_and_value(partial(outer_loss, work, window)), (None, 0, 0))

    def step() -> tuple[Tensor, Params]:
        with plainly(work.net):
            grads, losses = mapped(subject.meta, *work.tasks)
        return losses.mean(), {name: g.mean(0) for name, g in grads.items()}

    return step


def work_in(subject: Subject) -> Work:
    if subject.work is None:
        raise MetastepError("it is written for a module and a loss.")
    return subject.work


def outer_loss(work: Work, window: int, meta: Params, support: Any, query: Any) -> Tensor:
    def inner_loss(params: Params) -> Tensor:
        out = functional_call(work.net, params, support[0])
        return weighted(out, support[1], meta) if work.weighted else work.loss(out, support[1])

    params = work.start if work.weighted else meta
    memory = [[torch.zeros_like(p) for p in params.values()] for _ in range(2)]
    for k in range(work.steps):
        if k % window == 0:
            grads = tuple(torch.func.grad(inner_loss)(params).values())
        after, memory = moved(work.inner, list(params.values()), memory, grads, k + 1)
        params = dict(zip(params, after, strict=True))
    return work.loss(functional_call(work.net, params, query[0]), query[1])


def device_of(subject: Subject) -> torch.device:
    return next(iter(subject.meta.values())).device


Implementation = Callable[[Subject, str], Step]


def by_peer(name: str, subject: Subject, method: str) -> Step:
    """Return the same by another package, if it is installed."""
    from study.bench.implementations import peer_modules

    net, made = work_in(subject).net, getattr(peer_modules, f"by_{name}")(work_in(subject))

    def step() -> tuple[Tensor, Params]:
        with plainly(net):
            found: tuple[Tensor, Params] = made()
            return found

    return step


def by_jax(subject: Subject, method: str) -> Step:
    """Return the same in JAX, if it is installed."""
    from study.bench.implementations import jax_modules  # none of our requirements

    return jax_modules.step(subject, method)


class Way(NamedTuple):
    """How a meta-gradient is computed.

    Args:
        make: Makes a step of a subject and a method.
        usual: Whether it is measured for every method and number of threads. The others are for exact and the first.
        device: The only kind of device that it runs on.
        package: What has to be installed.
    """

    make: Implementation
    usual: bool = False
    device: str | None = None
    package: str | None = None


IMPLEMENTATIONS: dict[str, Way] = {
    "metastep": Way(by_gradient, usual=True),
    "metastep task by task": Way(partial(by_gradient, chunk_size=1)),
    "metastep, states alone": Way(states_alone, device="cpu"),
    "metastep captured": Way(in_a_graph, usual=True, device="cuda"),
    "metastep compiled": Way(partial(by_gradient, compile=True), usual=True),
    "torch.func by hand": Way(by_torch_func),
    "JAX jit": Way(by_jax, device="cpu", package="jax"),
    "higher": Way(partial(by_peer, "higher"), device="cpu", package="higher"),
    "TorchOpt": Way(partial(by_peer, "torchopt"), device="cpu", package="torchopt"),
}


# ---- subjects


def subject_of(work: Work) -> Subject:
    """Return a workload of the study as a subject."""
    problem = weighted_problem(work) if work.weighted else ms.few_shot(work.net, work.loss)

    def hand(method: str) -> Step:
        step = by_hand(work, WINDOWS[method])

        def switched() -> tuple[Tensor, Params]:
            with plainly(work.net):
                return step()

        return switched

    return Subject(METHODS, hand, problem, work.inner, work.steps, work.meta, work.tasks, work)


@contextmanager
def plainly(net: nn.Module) -> Iterator[None]:
    """Fused kernels of attention and of recurrent layers have no second derivatives."""
    recurrent = any(isinstance(part, nn.RNNBase) for part in net.modules())
    with sdpa_kernel(SDPBackend.MATH), plain_recurrence() if recurrent else nullcontext():
        yield


def mlp(*sizes: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for given, made in pairwise(sizes):
        parts += [nn.Linear(given, made), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def sinusoid(inner: Any) -> Work:
    batches = [(torch.randn(10, 10, 1), torch.randn(10, 10, 1)) for _ in range(2)]
    return Work(mlp(1, 40, 40, 1), F.mse_loss, inner, 8, ms.Task(*batches))


def cleaning(*sizes: int) -> Work:
    batches = [(torch.randn(1, 500, 784) / 10, torch.randint(10, (1, 500))) for _ in range(2)]
    return Work(mlp(*sizes), F.cross_entropy, ms.SGD(0.1, momentum=0.9), 100, ms.Task(*batches), weighted=True)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.attention = nn.LayerNorm(width), Attention(width, heads=4)
        self.before_features = nn.LayerNorm(width)
        self.features = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU("tanh"), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        out: Tensor = x + self.features(self.before_features(x))
        return out


class Classifier(nn.Module):
    """Two layers of a transformer, on sequences of tokens."""

    def __init__(self, tokens: int, width: int, places: int, classes: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(tokens, width), nn.Parameter(0.1 * torch.randn(places, width))
        self.blocks = nn.Sequential(Block(width), Block(width), nn.LayerNorm(width))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.embed(x) + self.place).mean(1))
        return out


def text() -> Work:
    batches = [(torch.randint(50, (4, 10, 32)), torch.randint(5, (4, 10))) for _ in range(2)]
    return Work(Classifier(50, 64, 32, 5), F.cross_entropy, ms.SGD(0.01, momentum=0.9), 5, ms.Task(*batches))


def pictures() -> Work:
    batches = [(torch.randn(8, n, 1, 28, 28), torch.arange(5).repeat_interleave(n // 5).repeat(8, 1)) for n in (5, 75)]
    return Work(conv4(1, 16, 5), F.cross_entropy, ms.SGD(0.1, momentum=0.9), 5, ms.Task(*batches))


def other_module(name: str) -> Work:
    """Return a subject of the experiment `other_modules`."""
    made = SUBJECTS[name]
    labels = torch.arange(WAYS).repeat(TASKS, EXAMPLES // WAYS)
    batches = [(torch.randn(TASKS, EXAMPLES, *made.shape), labels) for _ in range(2)]
    return Work(made.make(), F.cross_entropy, ms.SGD(RATE), STEPS, ms.Task(*batches))


def of_other_module(name: str) -> Subject:
    return subject_of(other_module(name))


def tiny() -> Subject:
    """Three parameters and a hundred steps: nothing but overhead."""
    phi = {"w": torch.randn(3)}
    tasks = ms.Task(*[(torch.randn(1, 10, 3), torch.randn(1, 10)) for _ in range(2)])

    def loss(params: Params, meta: Params, batch: tuple[Tensor, Tensor]) -> Tensor:
        del meta
        return (batch[0] @ params["w"] - batch[1]).square().mean()

    def by_autograd(method: str) -> Step:
        def step() -> tuple[Tensor, Params]:
            meta = {"w": phi["w"].detach().requires_grad_()}
            params, (support, query) = meta, ((x[0], y[0]) for x, y in tasks)
            for _ in range(100 // WINDOWS[method]):
                grad = torch.autograd.grad(loss(params, meta, support), params["w"], create_graph=True)[0]
                for _ in range(WINDOWS[method]):
                    params = {"w": params["w"] - 0.1 * grad}
            value = loss(params, meta, query)
            return value.detach(), {"w": torch.autograd.grad(value, meta["w"])[0]}

        return step

    problem = ms.Problem(lambda meta, task: meta, ms.every_window(loss), lambda p, m, task: loss(p, m, task.query))
    return Subject(METHODS, by_autograd, problem, ms.SGD(0.1), 100, phi, tasks)


def implicit() -> Subject:
    """iMAML with ten steps of conjugate gradients, on the perceptron of `other_modules`."""
    work = other_module(PERCEPTRON)
    subject = subject_of(work)
    hand = partial(imaml_by_hand, work, subject.meta)
    return subject._replace(methods={"iMAML": IMPLICIT}, hand=lambda method: hand, work=None)


def imaml_by_hand(work: Work, theta: Params) -> tuple[Tensor, Params]:
    """Return the implicit gradient as it is written by hand: one graph of ∇L for all products of the solver."""
    losses, total = [], [torch.zeros_like(p) for p in theta.values()]
    start = [p.detach() for p in theta.values()]

    def loss(params: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        return work.loss(functional_call(work.net, dict(zip(theta, params, strict=True)), x), y)

    for i in range(len(work.tasks.support[0])):
        support, query = ([x[i] for x in part] for part in work.tasks)
        params = start
        for _ in range(work.steps):
            params = [p.detach().requires_grad_() for p in params]
            grads = torch.autograd.grad(loss(params, *support), params)
            pulls = (g + IMPLICIT.strength * (p - p0) for p, g, p0 in zip(params, grads, start, strict=True))
            params = [p - work.inner.lr * pull for p, pull in zip(params, pulls, strict=True)]
        params = [p.detach().requires_grad_() for p in params]
        value = loss(params, *query)
        b = torch.cat([g.flatten() for g in torch.autograd.grad(value, params)])
        graph = torch.cat([g.flatten() for g in torch.autograd.grad(loss(params, *support), params, create_graph=True)])
        x = conjugate_gradients(params, graph, b)
        parts = torch.split(x, [p.numel() for p in params])
        found = [IMPLICIT.strength * part.view_as(p) for part, p in zip(parts, params, strict=True)]
        total = [t + f / len(work.tasks.support[0]) for t, f in zip(total, found, strict=True)]
        losses.append(value.detach())
    return torch.stack(losses).mean(), dict(zip(theta, total, strict=True))


def conjugate_gradients(params: list[Tensor], graph: Tensor, b: Tensor) -> Tensor:
    """Solve (H + λ)x = b, where `graph` is ∇L."""
    x, r = torch.zeros_like(b), b
    p, rr = r, r @ r
    for _ in range(IMPLICIT.solver.steps):  # type: ignore[attr-defined]
        products = torch.autograd.grad(graph, params, p, retain_graph=True)
        hp = torch.cat([h.flatten() for h in products]) + IMPLICIT.strength * p
        alpha = rr / (p @ hp)
        x, r, before = x + alpha * p, r - alpha * hp, rr
        rr = r @ r
        p = r + rr / before * p
    return x


PERCEPTRON = next(iter(SUBJECTS))
MADE: dict[str, Callable[[], Subject]] = {
    "a": lambda: subject_of(sinusoid(ms.SGD(0.01, momentum=0.9))),
    "b": lambda: subject_of(sinusoid(ms.Adam(0.01))),
    "c": lambda: subject_of(cleaning(784, 10)),
    "c2": lambda: subject_of(cleaning(784, 64, 10)),
    "d": lambda: subject_of(text()),
    "e": lambda: subject_of(pictures()),
    **{name.split()[0].rstrip(","): partial(of_other_module, name) for name in SUBJECTS},
    "tiny": tiny,
    "implicit": implicit,
}
ABOUT = {
    "a": "MLP 1-40-40-1, 10 tasks",
    "b": "the same, Adam",
    "c": "weights of 500 examples, linear 784-10, 100 steps",
    "c2": "the same, MLP 784-64-10",
    "d": "transformer of two layers, 32 tokens, 4 tasks",
    "e": "Conv4 with 16 filters, 28x28, 8 tasks",
    **{name.split()[0].rstrip(","): f"{name}, 8 tasks" for name in SUBJECTS},
    "tiny": "3 parameters, 100 steps",
    "implicit": f"iMAML, 10 steps of CG; {PERCEPTRON}",
}


def made(name: str, device: torch.device = CPU) -> Subject:
    """Return the subject of this name, the same at every call."""
    with torch.random.fork_rng(devices=[]), device:
        torch.manual_seed(0)
        return MADE[name]()
