"""The workloads of `bench modules` in JAX, jitted whole: the inner loop unrolled, scanned, or scanned with remat.

The fastest of the three counts. Convolutions are left out: JAX takes seconds for them on a CPU.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import Tensor
from torch.nn import Sequential

import metastep as ms
from metastep.errors import MetastepError
from study.bench.module_cases import WINDOWS, Classifier, Subject, work_in
from study.problems import Params, Step

Arrays = dict[str, Any]
HEADS, EPS = 4, 1e-5  # of the transformer; of its LayerNorm


def step(subject: Subject, method: str) -> Step:
    """Return one meta-gradient by JAX, in the fastest of three ways."""
    if not isinstance(work_in(subject).net, Classifier | Sequential) or any(p.dim() > 2 for p in subject.meta.values()):
        raise MetastepError("only perceptrons and one transformer are written in JAX.")
    meta, tasks = arrays(subject.meta), arrays_of_tasks(subject.tasks)
    ways = [jax.jit(meta_gradient(subject, WINDOWS[method], how)) for how in ("unrolled", "scan", "remat")]
    run = min(ways, key=lambda way: seconds(way, meta, tasks))

    def measured() -> tuple[Tensor, Params]:
        loss, grad = jax.block_until_ready(run(meta, tasks))
        return torch.utils.dlpack.from_dlpack(loss), {
            name: torch.utils.dlpack.from_dlpack(g) for name, g in grad.items()
        }

    return measured


def seconds(way: Callable[..., Any], *given: Any) -> float:
    times = []
    for _ in range(4):  # the first compiles
        begun = time.process_time()
        jax.block_until_ready(way(*given))
        times.append(time.process_time() - begun)
    return min(times)


def arrays(tensors: Params) -> Arrays:
    return {name: jnp.asarray(x.detach().numpy()) for name, x in tensors.items()}


def arrays_of_tasks(tasks: ms.Task) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x.numpy()), tuple(tasks), is_leaf=lambda x: isinstance(x, Tensor))


def meta_gradient(subject: Subject, window: int, how: str) -> Callable[[Arrays, Any], Any]:
    weighs = subject.problem.made_of is None  # θ weighs examples; else φ starts from it
    start: Any = subject.problem.start(subject.meta, None)
    first = arrays(start) if weighs else None
    loss = partial(loss_of, squared=subject.tasks.support[1].dtype.is_floating_point)

    def inner(params: Arrays, meta: Arrays, batch: Any) -> Any:
        each = loss(params, batch)
        return (each * jax.nn.sigmoid(meta["weights"])).mean() if weighs else each.mean()

    def of_task(meta: Arrays, support: Any, query: Any) -> Any:
        params = first if weighs else meta
        gradient = jax.grad(inner)
        state = params, *(jax.tree.map(jnp.zeros_like, params) for _ in range(2)), jnp.zeros(())

        def one(state: Any, _: Any = None) -> tuple[Any, None]:
            return moved(subject.inner, state, gradient(state[0], meta, support), window), None

        return loss(looped(one, state, subject.steps // window, how)[0], query).mean()

    def mean(meta: Arrays, tasks: Any) -> Any:
        return jax.vmap(of_task, (None, 0, 0))(meta, *tasks).mean()

    return jax.value_and_grad(mean)  # type: ignore[no-any-return]


def looped(one: Callable[..., Any], state: Any, times: int, how: str) -> Any:
    if how == "unrolled":
        for _ in range(times):
            state, _ = one(state)
        return state
    return jax.lax.scan(jax.checkpoint(one) if how == "remat" else one, state, None, length=times)[0]


def moved(inner: Any, state: Any, grads: Arrays, steps: int) -> Any:
    """So many steps of the inner optimizer, which share a gradient"""
    advance = by_sgd if isinstance(inner, ms.SGD) else by_adam
    for _ in range(steps):
        state = advance(inner, state, grads)
    return state


def by_sgd(inner: Any, state: Any, grads: Arrays) -> Any:
    params, m, v, k = state
    m = jax.tree.map(lambda a, g: inner.momentum * a + g, m, grads)
    return jax.tree.map(lambda p, a: p - inner.lr * a, params, m), m, v, k


def by_adam(inner: Any, state: Any, grads: Arrays) -> Any:
    params, m, v, k = state
    b1, b2 = inner.betas
    m = jax.tree.map(lambda a, g: b1 * a + (1 - b1) * g, m, grads)
    v = jax.tree.map(lambda a, g: b2 * a + (1 - b2) * g * g, v, grads)
    first, second = 1 - b1 ** (k + 1), 1 - b2 ** (k + 1)

    def move(p: Any, a: Any, b: Any) -> Any:
        return p - inner.lr * (a / first) / (root(b / second) + inner.eps)

    return jax.tree.map(move, params, m, v), m, v, k + 1


def root(v: Any) -> Any:
    """√v with slope 0 at v = 0"""
    positive = v > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, v, 1.0)), 0.0)


def loss_of(params: Arrays, batch: Any, squared: bool) -> Any:
    """The loss of each example"""
    x, y = batch
    out = transformer(params, x) if "embed.weight" in params else perceptron(params, x)
    if squared:
        return (out - y) ** 2
    return -jnp.take_along_axis(jax.nn.log_softmax(out), y[:, None], 1)[:, 0]


def linear(params: Arrays, name: str, x: Any) -> Any:
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


def perceptron(params: Arrays, x: Any) -> Any:
    names = sorted({name.split(".")[0] for name in params}, key=int)
    for name in names[:-1]:
        x = jax.nn.relu(linear(params, name, x))
    return linear(params, names[-1], x)


def transformer(params: Arrays, x: Any) -> Any:
    x = params["embed.weight"][x] + params["place"]
    for block in ("blocks.0", "blocks.1"):
        x = x + attention(params, f"{block}.attention", normed(params, f"{block}.before_attention", x))
        within = linear(params, f"{block}.features.0", normed(params, f"{block}.before_features", x))
        x = x + linear(params, f"{block}.features.2", jax.nn.gelu(within, approximate=True))
    return linear(params, "head", normed(params, "blocks.2", x).mean(1))


def normed(params: Arrays, name: str, x: Any) -> Any:
    away = x - x.mean(-1, keepdims=True)
    scaled = away * jax.lax.rsqrt((away**2).mean(-1, keepdims=True) + EPS)
    return scaled * params[f"{name}.weight"] + params[f"{name}.bias"]


def attention(params: Arrays, name: str, x: Any) -> Any:
    examples, places, width = x.shape
    parts = jnp.split(linear(params, f"{name}.qkv", x), 3, axis=-1)
    q, k, v = (part.reshape(examples, places, HEADS, -1).transpose(0, 2, 1, 3) for part in parts)
    share = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / (q.shape[-1] ** 0.5))
    return linear(params, f"{name}.out", (share @ v).transpose(0, 2, 1, 3).reshape(examples, places, width))
