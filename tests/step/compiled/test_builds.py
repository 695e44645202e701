"""Plans that inductor compiles give what autograd gives; which graphs they are is tested without it."""

from shutil import which

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import metastep as ms
from metastep.core.trees import map_tree
from metastep.step.compiled.plan import LONG
from tests.core.helpers import DYNAMICS, by_autograd, case, relative_error

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(not (which("g++") or which("clang++")), reason="inductor needs a C++ compiler"),
]


@pytest.mark.parametrize(
    ("problem", "window", "inner", "chunk_size"),
    [
        ("regression", 2, "momentum", None),
        ("convolution", 1, "sgd", None),
        ("meta_network", 1, "scheduled", 1),
    ],
)
def test_a_compiled_plan_gives_the_derivative(problem: str, window: int, inner: str, chunk_size: int | None) -> None:
    given, meta, tasks = case(problem)
    options = {"steps": 4, "chunk_size": chunk_size}
    gradient = ms.MetaGradient(given, ms.MultiStep(window), DYNAMICS[inner], compile=True, **options)  # type: ignore[arg-type]
    expected = by_autograd(gradient, meta, tasks)
    for _ in range(3):
        found = gradient(meta, tasks)
        assert gradient.path.startswith("compiled"), gradient.path
        assert relative_error(found.grad, expected.grad) < 1e-9
        torch.testing.assert_close(found.metrics, expected.metrics)
    assert gradient.compiled.cost.compiling > 0


def test_rates_of_each_step_are_compiled() -> None:
    """Their gradient is written into a table that vmap expands, which inductor alone would write too often."""
    given, _, tasks = case("regression")
    gradient = ms.MetaGradient(given, ms.methods.MAMLPP(), ms.SGD(0.1), steps=2, compile=True)
    meta = gradient.init(given.made_of.module)  # type: ignore[union-attr]
    found = gradient(meta, tasks)
    assert gradient.path == "compiled, 3 tasks at a time", gradient.path
    assert relative_error(found.grad, by_autograd(gradient, meta, tasks).grad) < 1e-9


@pytest.mark.parametrize("steps", [3, LONG])
def test_products_by_another_library_are_compiled(steps: int) -> None:
    """In float32, large products are oneDNN's, and narrow ones are turned. Long loops copy what all windows read."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(300, 64), nn.ReLU(), nn.Linear(64, 5))

    def loss(params: dict[str, Tensor], meta: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        each = F.cross_entropy(ms.apply(net, params, batch[0]), batch[1], reduction="none")
        return (each * meta.sigmoid()).mean()

    problem = ms.Problem(
        lambda meta, task: ms.parameters(net),
        ms.every_window(loss),
        lambda params, meta, task: F.cross_entropy(ms.apply(net, params, task.query[0]), task.query[1]),
    )
    batches = [(torch.randn(1, 200, 300), torch.randint(5, (1, 200))) for _ in range(2)]
    gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(0.01, momentum=0.9), steps=steps, compile=True)
    meta, tasks = torch.randn(200), ms.Task(*batches)
    found = gradient(meta, tasks)
    assert gradient.path == "compiled, one task after the other"
    assert relative_error(found.grad, by_autograd(gradient, meta, tasks).grad) < 1e-5


def test_dropout_and_adam_are_compiled() -> None:
    net = nn.Sequential(nn.Linear(2, 5), nn.Dropout(0.4), nn.ReLU(), nn.Linear(5, 1))
    tasks = map_tree(Tensor.float, case("regression").tasks)
    found = []
    for compile in (True, False):
        gradient = ms.MetaGradient(ms.few_shot(net, F.mse_loss), ms.MAML(), ms.Adam(0.01), steps=2, compile=compile)
        torch.manual_seed(1)
        found.append(gradient(net, tasks).grad)
        assert gradient.path.startswith("compiled") == compile, gradient.path
    assert relative_error(*found) < 1e-5
