"""JAX: the whole meta-iteration jitted, mapped over tasks; with `remat`, windows are computed again on the way back.

Everything is in JAX's own layout, height × width × input × output. Episodes are drawn with JAX's own generator.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import torch

from metastep.core.windows import window_lengths
from metastep.step.chain.chain import Block, Chain
from study.bench.cases import SETTINGS, Case, FewShot, inner_of
from study.bench.machines import Machine, TorchMachine
from study.bench.workload import OUTER_RATE, Step, pictures, shapes_of, workload

Params = dict[str, Any]
Batch = tuple[Any, Any]  # pictures (n, height, width, channels), labels
BETAS, EPS = (0.9, 0.999), 1e-8  # of the outer Adam, as in torch.optim


def step(case: Case, device: torch.device, remat: bool = False) -> Step:
    setting, work = SETTINGS[case.setting], workload(case, torch.device("cpu"))
    images, params = load(case, device), from_torch(work.meta)
    state = (params, *(jax.tree.map(jnp.zeros_like, params) for _ in range(2)), jnp.zeros((), jnp.int32))
    state = jax.device_put(state, jax_device(device))  # at home from the first step on: the second would compile again
    iterate = jax.jit(whole_iteration(case, setting, remat), donate_argnums=0)

    def advance() -> None:
        nonlocal state
        with jax.default_matmul_precision("tensorfloat32" if case.precision == "tf32" else "highest"):
            state = iterate(state, images)

    return advance


@cache
def load(case: Case, device: torch.device) -> Any:
    images = pictures(case, torch.device("cpu")).movedim(2, -1).contiguous()
    return jax.device_put(images.numpy(), jax_device(device))


def whole_iteration(case: Case, setting: FewShot, remat: bool) -> Callable[[Any, Any], Any]:
    gradient = meta_gradient(case, remat)

    def iterate(state: Any, images: Any) -> Any:
        params, m, v, k = state
        grads = gradient(params, *episodes(setting, images, k, case.tasks))
        m = jax.tree.map(lambda m, g: BETAS[0] * m + (1 - BETAS[0]) * g, m, grads)
        v = jax.tree.map(lambda v, g: BETAS[1] * v + (1 - BETAS[1]) * g * g, v, grads)
        t = (k + 1).astype(params["head.bias"].dtype)
        first, second = (1 - beta**t for beta in BETAS)
        params = jax.tree.map(lambda p, m, v: p - OUTER_RATE * (m / first) / (jnp.sqrt(v / second) + EPS), params, m, v)
        return params, m, v, k + 1

    return iterate


def meta_gradient(case: Case, remat: bool = False) -> Callable[[Params, Batch, Batch], Params]:
    """(θ, support, query), the last two with a leading task axis"""
    sgd, loss = inner_of(case), partial(loss_of, shapes_of(SETTINGS[case.setting]))

    def window(state: tuple[Params, Params], support: Batch, length: int) -> tuple[Params, Params]:
        params, velocity = state
        grads = jax.grad(loss)(params, support)
        for _ in range(length):
            velocity = jax.tree.map(
                lambda v, g, p: sgd.momentum * v + g + sgd.weight_decay * p, velocity, grads, params
            )
            params = jax.tree.map(lambda p, v: p - sgd.lr * v, params, velocity)
        return params, velocity

    one_window = jax.checkpoint(window, static_argnums=2) if remat else window

    def adapted(meta: Params, support: Batch) -> Params:
        state = meta, jax.tree.map(jnp.zeros_like, meta)
        for length in window_lengths(case.steps, case.window):
            state = one_window(state, support, length)
        return state[0]

    def of_task(meta: Params, support: Batch, query: Batch) -> Params:
        if case.method == "first_order":
            return jax.grad(loss)(adapted(meta, support), query)  # type: ignore[no-any-return]
        return jax.grad(lambda meta: loss(adapted(meta, support), query))(meta)  # type: ignore[no-any-return]

    mapped = jax.vmap(of_task, (None, 0, 0))
    return lambda meta, support, query: jax.tree.map(lambda g: g.mean(0), mapped(meta, support, query))


def loss_of(net: Chain, params: Params, batch: Batch) -> Any:
    x, y = batch
    for block in net.blocks:
        x = pooled(block, activation(block, params, x))
    scores = jax.nn.log_softmax(x.reshape(x.shape[0], -1) @ params["head.weight"] + params["head.bias"])
    return -jnp.take_along_axis(scores, y[:, None], 1).mean()


def activation(block: Block, params: Params, x: Any) -> Any:
    """Convolution, BatchNorm, ReLU"""
    around = block.padding, max(block.padding, block.behind)  # alike on both sides, as cuDNN wants it, where it can be
    z = jax.lax.conv_general_dilated(
        x, params[block.weight.name], (block.stride,) * 2, (around,) * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    z = z + params[block.bias.name] if block.bias else z
    normalised = (z - z.mean((0, 1, 2))) * jax.lax.rsqrt(z.var((0, 1, 2)) + block.eps)
    scaled = normalised * params[block.scale.name] if block.scale else normalised
    return jax.nn.relu(scaled + params[block.shift.name])


def pooled(block: Block, a: Any) -> Any:
    """The largest of each window; what is left over at the edge is in none"""
    if block.pool == 1:
        return a
    side, within = block.seen_size, block.seen_size * block.pool
    windows = a[:, :within, :within].reshape(len(a), side, block.pool, side, block.pool, -1)
    return windows.max((2, 4))


def episodes(setting: FewShot, images: Any, k: Any, tasks: int) -> tuple[Batch, Batch]:
    """Classes and pictures without replacement, for each task of batch k"""
    shape = setting.episodes
    classes_key, pictures_key = jax.random.split(jax.random.fold_in(jax.random.key(0), k))
    classes = largest(classes_key, (tasks, images.shape[0]), shape.ways)
    chosen = largest(pictures_key, (tasks, shape.ways, images.shape[1]), shape.images)
    x = images[classes[..., None], chosen].astype(jnp.float32) / 255  # (tasks, ways, n, height, width, channels)
    return labelled(x[:, :, : shape.shots]), labelled(x[:, :, shape.shots :])


def largest(key: Any, shape: tuple[int, ...], number: int) -> Any:
    return jax.lax.top_k(jax.random.uniform(key, shape), number)[1]


def labelled(x: Any) -> Batch:
    tasks, ways, n = x.shape[:3]
    y = jnp.broadcast_to(jnp.repeat(jnp.arange(ways), n), (tasks, ways * n))
    return x.reshape(tasks, ways * n, *x.shape[3:]), y


def from_torch(meta: dict[str, torch.Tensor]) -> Params:
    """Our θ in JAX's layout; the head sees height × width × channels where ours sees channels × height × width"""

    def layout(name: str, p: torch.Tensor) -> torch.Tensor:
        if p.dim() == 4:
            return p.permute(2, 3, 1, 0)
        if name != "head.weight":
            return p
        filters = meta["blocks.3.0.bias"].shape[0]
        side = round((p.shape[1] // filters) ** 0.5)
        return p.view(-1, filters, side, side).permute(2, 3, 1, 0).reshape(p.shape[1], -1)

    return {name: jnp.asarray(layout(name, p.detach()).contiguous().cpu().numpy()) for name, p in meta.items()}


def jax_device(device: torch.device) -> Any:
    return jax.devices("gpu" if device.type == "cuda" else "cpu")[0]


class JaxGpu:
    """JAX's own allocator; its peak cannot be set back, so that each row needs a process of its own."""

    def __init__(self, device: torch.device) -> None:
        self.device = jax_device(device)
        self.before = self.device.memory_stats()["bytes_in_use"]

    def wait(self) -> None:
        for array in jax.live_arrays():
            array.block_until_ready()

    def peak_mib(self) -> float:
        return float(self.device.memory_stats()["peak_bytes_in_use"] - self.before) / 2**20


class JaxCpu(TorchMachine):
    """Resident memory, as for the others"""

    def wait(self) -> None:
        for array in jax.live_arrays():
            array.block_until_ready()


def machine(device: torch.device) -> Machine:
    return JaxGpu(device) if device.type == "cuda" else JaxCpu(device)
