"""Any module: what PyTorch's fused kernels cannot differentiate twice works without the user's doing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import metastep as ms
from metastep.core.trees import map_tree
from metastep.core.windows import inner_loop
from metastep.nets.conv4 import Conv4
from metastep.step.mapped import mapped
from tests.core.as_written import gradient_of
from tests.core.helpers import DYNAMICS, first, randn, relative_error


class Pooled(nn.Module):
    """A sequence core, the mean over time, and a head"""

    def __init__(self, core: nn.Module, width: int) -> None:
        super().__init__()
        self.core, self.head = core, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Any:
        out = self.core(x)
        return self.head((out[0] if isinstance(out, tuple) else out).mean(1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v).squeeze(1)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Any:
        return self.b(torch.tanh(self.a(x)))


class Noisy(nn.Module):
    """Draws random numbers without a dropout layer that could be seen from outside"""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.linear(x), 0.5)


def encoder(dropout: float = 0.0) -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 8, dropout=dropout, batch_first=True)


def partly_frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    net[0].requires_grad_(False)
    return net


SEQUENCES: dict[str, Callable[[], nn.Module]] = {
    "layer norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()),
    "attention": Attention,
    "transformer": encoder,
    "transformer with dropout": lambda: encoder(0.3),
    "gru": lambda: nn.GRU(4, 4, batch_first=True),
    "lstm": lambda: nn.LSTM(4, 4, num_layers=2, batch_first=True),
    "tied": Tied,
    "dropout": lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5)),
    "noise of its own": Noisy,
    "frozen": partly_frozen,
}


def sequences(net: nn.Module) -> tuple[ms.Problem, dict[str, Tensor], ms.Task]:
    labels = torch.arange(3).repeat(3, 2)
    tasks = ms.Task((randn(3, 6, 5, 4), labels), (randn(3, 6, 5, 4), labels))
    return ms.few_shot(net, F.cross_entropy), ms.parameters(net), tasks


# A key's bias does not move attention: its gradient is rounding noise, which Adam divides by itself unless ε is larger.
INNER: dict[str, ms.optimizers.InnerOptimizer] = {"momentum": DYNAMICS["momentum"], "adam": ms.Adam(0.02, eps=1e-3)}


@pytest.mark.parametrize("curvature", [ms.curvature.exact, ms.curvature.exact_forward])
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("name", SEQUENCES)
def test_sweep_equals_autograd(name: str, inner: str, curvature: Any) -> None:
    torch.manual_seed(0)
    problem, meta, tasks = sequences(Pooled(SEQUENCES[name](), 4).double())
    methods = ms.MultiStep(2, curvature), ms.methods.Reference(2)
    multi_step, reference = (ms.MetaGradient(problem, m, INNER[inner], steps=6, chunk_size=3) for m in methods)
    torch.manual_seed(1)
    swept = multi_step(meta, tasks)
    after = torch.rand(())
    torch.manual_seed(1)
    stored = reference(meta, tasks)
    assert relative_error(swept.grad, stored.grad) < 1e-9
    assert torch.equal(after, torch.rand(()))  # the sweep leaves the generator where autograd does


@pytest.mark.parametrize("curvature", [ms.curvature.exact, ms.curvature.exact_forward])
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_layers_in_the_precision_that_has_fused_kernels(kind: Any, curvature: Any) -> None:
    torch.manual_seed(0)
    problem, meta, tasks = sequences(Pooled(kind(4, 4, batch_first=True), 4))
    tasks = map_tree(lambda x: x.float() if x.is_floating_point() else x, tasks)
    methods = ms.MultiStep(2, curvature), ms.methods.Reference(2)
    swept, stored = (gradient_of(problem, 6, method) for method in methods)
    assert relative_error(swept(meta, tasks).grad, stored(meta, tasks).grad) < 1e-5
    alone = (gradient.estimator(meta, first(tasks)).grad for gradient in (swept, stored))
    assert relative_error(*alone) < 1e-5


def test_dropout_is_the_same_in_every_look_at_a_window() -> None:
    torch.manual_seed(0)
    problem, meta, tasks = sequences(Pooled(nn.Dropout(0.5), 4).double())
    task = ms.Task(*(tuple(x[0] for x in part) for part in tasks))
    window, other = inner_loop(problem, ms.SGD(0.1), 2).windows(task)
    with torch.no_grad():
        values = {float(window.loss(meta, meta, window.batch)) for _ in range(5)}
        assert len(values) == 1
        assert float(other.loss(meta, meta, other.batch)) not in values


def test_frozen_parameters_are_held() -> None:
    problem, meta, tasks = sequences(Pooled(partly_frozen(), 4).double())
    assert set(meta) == {"core.2.weight", "core.2.bias", "head.weight", "head.bias"}
    assert set(gradient_of(problem)(meta, tasks).grad) == set(meta)


def images(tasks: int = 3, dtype: torch.dtype = torch.float64) -> ms.Task:
    x, y = torch.randn(tasks, 5, 1, 28, 28, dtype=dtype), torch.arange(5).expand(tasks, 5)
    return ms.Task((x, y), (torch.randn(tasks, 10, 1, 28, 28, dtype=dtype), y.repeat(1, 2)))


@pytest.mark.parametrize("dynamics", ["momentum", "adam"])
def test_conv4_with_batchnorm(dynamics: str) -> None:
    torch.manual_seed(0)
    net = Conv4(ways=5, filters=4).double()
    problem, meta, tasks = ms.few_shot(net, F.cross_entropy), ms.parameters(net), images()
    loop = inner_loop(problem, DYNAMICS[dynamics], 4, 2)
    methods = ms.MultiStep(2), ms.methods.Reference(2)
    swept, stored = (mapped(method, loop, None)(meta, tasks).grad for method in methods)  # not by hand
    assert relative_error(swept, stored) < 1e-9


def test_conv4_is_the_benchmark_net() -> None:
    assert sum(p.numel() for p in Conv4(ways=5).parameters()) == 113_221
    assert sum(p.numel() for p in Conv4(ways=20).parameters()) == 117_076
    assert Conv4(ways=5)(torch.randn(2, 1, 28, 28)).shape == (2, 5)


def test_held_running_statistics_are_used_and_left_alone() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)).double()
    net(randn(64, 4))  # gives the statistics something to hold
    problem, meta = ms.few_shot(net.eval(), F.cross_entropy), ms.parameters(net)
    before = {name: b.clone() for name, b in net.named_buffers()}
    labels = torch.arange(3).repeat(3, 2)
    tasks = ms.Task((randn(3, 6, 4), labels), (randn(3, 6, 4), labels))
    methods = ms.MAML(), ms.methods.Reference()
    gradients = (ms.MetaGradient(problem, method, DYNAMICS["momentum"], steps=4) for method in methods)
    assert relative_error(*(gradient(meta, tasks).grad for gradient in gradients)) < 1e-9
    assert all(torch.equal(b, before[name]) for name, b in net.named_buffers())


def test_batch_statistics_for_the_whole_module() -> None:
    net = ms.use_batch_statistics(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.InstanceNorm2d(2)))
    assert not list(net.named_buffers())
    ms.few_shot(net, F.cross_entropy)


def test_several_inputs_are_spread_over_the_arguments() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(randn(4))

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a @ self.w + b

    net = Two()
    problem, meta = ms.few_shot(net, F.mse_loss), ms.parameters(net)
    batch = ((randn(3, 5, 4), randn(3, 5)), randn(3, 5))
    estimate = gradient_of(problem, 3)(meta, ms.Task(batch, batch))
    assert estimate.grad["w"].shape == (4,)


def cast_to_bfloat16(net: nn.Module) -> ms.Problem:
    """θ, φ and the steps stay float32, and the net computes in bfloat16, with what is frozen and buffers"""

    def loss(params: Any, meta: Any, batch: Any) -> Tensor:
        x, y = batch
        every = {**dict(net.named_buffers()), **dict(net.named_parameters()), **params}
        out = ms.apply(net, {name: p.bfloat16() for name, p in every.items()}, x.bfloat16())
        return F.cross_entropy(out.float(), y)

    return ms.Problem(
        lambda meta, task: meta, ms.every_window(loss), lambda params, meta, task: loss(params, meta, task.query)
    )


def statistics(held: bool) -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(20, 4), nn.BatchNorm1d(4), nn.Unflatten(1, (1, 4)))
    net(torch.randn(32, 5, 4))
    return net.eval() if held else ms.use_batch_statistics(net)


LOW: dict[str, Callable[[], nn.Module]] = {
    **{name: SEQUENCES[name] for name in ("layer norm", "attention", "transformer", "lstm", "tied", "frozen")},
    "batch statistics": lambda: statistics(held=False),
    "held statistics": lambda: statistics(held=True),
}


def in_single(name: str) -> tuple[nn.Module, dict[str, Tensor], ms.Task]:
    torch.manual_seed(0)
    _, meta, tasks = sequences(net := Pooled(LOW[name](), 4))
    return net, meta, map_tree(lambda x: x.float() if x.is_floating_point() else x, tasks)


@pytest.mark.parametrize("curvature", [ms.curvature.exact, ms.curvature.exact_forward])
@pytest.mark.parametrize("name", LOW)
def test_a_loss_that_casts_to_bfloat16(name: str, curvature: Any) -> None:
    net, meta, tasks = in_single(name)
    low = gradient_of(cast_to_bfloat16(net), 4, ms.MAML(curvature))
    full = gradient_of(ms.few_shot(net, F.cross_entropy), 4)
    found = low(meta, tasks).grad
    assert all(grad.dtype == torch.float32 for grad in found.values())
    assert 0 < relative_error(found, full(meta, tasks).grad) < 0.05


def moved(problem: ms.Problem, meta: dict[str, Tensor], task: ms.Task) -> float:
    """The share of φ that 5 small steps change"""
    adapted = ms.MetaGradient(problem, ms.MAML(), ms.SGD(0.01), steps=5).adapt(meta, task)
    changed = torch.cat([(adapted[name] != meta[name]).flatten() for name in meta])
    return float(changed.float().mean())


def test_small_steps_are_lost_in_bfloat16_and_not_where_the_loss_casts() -> None:
    net, meta, tasks = in_single("transformer")
    task = first(tasks)
    assert moved(cast_to_bfloat16(net), meta, task) > 0.95
    half = map_tree(lambda x: x.bfloat16() if x.is_floating_point() else x, task)
    assert moved(ms.few_shot(net.bfloat16(), F.cross_entropy), ms.parameters(net), half) < 0.5
