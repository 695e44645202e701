"""Compiled plans on a GPU give what autograd gives there, before and after they are captured in a CUDA graph."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

import metastep as ms
from metastep.core.trees import map_tree
from study.experiments.other_modules import WAYS, Last
from tests.core.helpers import relative_error
from tests.step.helpers import values_of

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
TASKS, EXAMPLES = 4, 10


@pytest.fixture(autouse=True)
def _products_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8, track_running_stats=False), nn.Tanh(),
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8, track_running_stats=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x + self.body(x))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, WAYS)), (16,)),
    "transformer": (lambda: Last(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), 16), (6, 16)),
    "lstm": (lambda: Last(nn.LSTM(8, 16, batch_first=True), 16), (6, 8)),
    "resnet": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), Residual(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8 * 49, WAYS)),
        (3, 16, 16),
    ),
}


def made(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, list[ms.Task]]:
    torch.manual_seed(0)
    make, shape = NETS[name]
    net, labels = make().cuda().to(dtype), torch.arange(WAYS).repeat(TASKS, EXAMPLES // WAYS).cuda()

    def batch() -> tuple[Tensor, Tensor]:
        return torch.randn(TASKS, EXAMPLES, *shape, dtype=dtype).cuda(), labels

    return net, [ms.Task(batch(), batch()) for _ in range(5)]


@pytest.mark.parametrize("inner", [ms.SGD(0.05, momentum=0.9), ms.Adam(0.01)], ids=["sgd", "adam"])
@pytest.mark.parametrize("name", NETS)
def test_compiled_on_a_gpu_equals_eager_on_it(name: str, inner: ms.optimizers.InnerOptimizer) -> None:
    net, several = made(name, torch.float64)
    parts = ms.few_shot(net, F.cross_entropy), ms.MultiStep(window=2), inner
    gradient, eager = (ms.MetaGradient(*parts, steps=4, compile=compile) for compile in (True, False))
    for call, tasks in enumerate(several, 1):
        found, expected = gradient(net, tasks), eager(net, tasks)
        assert gradient.path.startswith(f"compiled, {TASKS} tasks at a time"), gradient.path
        assert relative_error(found.grad, expected.grad) < 1e-8, call
        torch.testing.assert_close(found.metrics, expected.metrics, rtol=1e-8, atol=1e-10)
    assert gradient.path.endswith("captured in a CUDA graph"), gradient.path


def test_compiled_in_float64_on_a_gpu_equals_a_cpu() -> None:
    net, several = made("mlp", torch.float64)
    gradient = ms.MetaGradient(ms.few_shot(net, F.cross_entropy), ms.MAML(), ms.Adam(0.01), steps=4, compile=True)
    on_gpu = [gradient(net, tasks).grad for tasks in several]
    assert gradient.path.endswith("captured in a CUDA graph"), gradient.path
    net.cpu()
    specified = ms.MetaGradient(ms.few_shot(net, F.cross_entropy), ms.MAML(), ms.Adam(0.01), steps=4)
    for found, tasks in zip(on_gpu, several, strict=True):
        expected = specified(net, map_tree(Tensor.cpu, tasks)).grad
        assert relative_error(map_tree(Tensor.cpu, found), expected) < 1e-9


@pytest.mark.parametrize("chunk_size", [None, 1])
def test_rates_weights_and_held_tensors_on_a_gpu(chunk_size: int | None) -> None:
    """A loss of one's own, which holds a tensor, on θ that weighs examples; rates by a schedule"""
    net, several = made("mlp")
    held, start = torch.ones(EXAMPLES, device="cuda"), {n: p.detach() for n, p in net.named_parameters()}

    def inner(params: dict[str, Tensor], meta: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        each = F.cross_entropy(ms.apply(net, params, batch[0]), batch[1], reduction="none")
        return (held * meta.sigmoid() * each).mean()

    problem = ms.Problem(
        lambda meta, task: start,
        ms.every_window(inner),
        lambda params, meta, task: F.cross_entropy(ms.apply(net, params, task.query[0]), task.query[1]),
    )
    parts = problem, ms.MAML(), ms.SGD(lambda meta, step: 0.1 / (1 + step), momentum=0.9)
    gradient, eager = (ms.MetaGradient(*parts, steps=4, compile=c, chunk_size=chunk_size) for c in (True, False))
    meta = torch.zeros(EXAMPLES, device="cuda")
    for tasks in several:
        held *= 0.9
        assert relative_error(gradient(meta, tasks).grad, eager(meta, tasks).grad) < 1e-3
    assert gradient.path.endswith("captured in a CUDA graph"), gradient.path


def test_dropout_on_a_gpu_is_drawn_as_eager_execution_draws_it() -> None:
    net = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.4), nn.Tanh(), nn.Linear(32, WAYS)).cuda()
    parts, (_, several) = (ms.few_shot(net, F.cross_entropy), ms.MAML(), ms.SGD(0.1)), made("mlp")
    gradient, eager = (ms.MetaGradient(*parts, steps=3, compile=compile) for compile in (True, False))
    for tasks in several:
        found = []
        for each in (gradient, eager):
            torch.manual_seed(3)
            found.append(each(net, tasks).grad)
        assert relative_error(*found) < 1e-3
    assert gradient.path.endswith("not captured: random numbers are drawn"), gradient.path


def test_a_captured_update_on_a_gpu_holds_a_compiled_plan() -> None:
    found = []
    for compile in (True, False):
        net, several = made("mlp")
        gradient = ms.MetaGradient(
            ms.few_shot(net, F.cross_entropy), ms.MultiStep(2), ms.SGD(0.1), steps=4, compile=compile
        )
        step = ms.MetaStep(gradient, net, Adam(net.parameters(), 1e-3), clip=1.0)
        for tasks in 3 * several:
            step(tasks)
        step.settle()
        assert "captured in a CUDA graph" in step.path, step.path
        assert ("compiled" in step.path) == compile, step.path
        found.append(values_of(net))
    assert relative_error(*found) < 1e-3
