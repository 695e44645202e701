"""A meta-gradient inside of a user's torch.compile runs as it does outside."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import metastep as ms
from tests.core.helpers import DYNAMICS, PROBLEMS, case, relative_error

# torch.compile's own tracer still calls what PyTorch deprecates.
pytestmark = [
    pytest.mark.compiled,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="aot_eager")


@pytest.mark.parametrize("method", [ms.MultiStep(2), ms.methods.HFMAML()])
@pytest.mark.parametrize("dynamics", ["dampened", "adam"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_it_is_left_alone(problem: str, dynamics: str, method: ms.methods.Method) -> None:
    p, meta, tasks = case(problem)
    gradient = ms.MetaGradient(p, method, DYNAMICS[dynamics], steps=4)
    found, expected = compiled(lambda meta, tasks: gradient(meta, tasks))(meta, tasks), gradient(meta, tasks)
    assert relative_error(found.grad, expected.grad) == 0
    torch.testing.assert_close(found.metrics, expected.metrics, rtol=0, atol=0)


def test_the_rest_of_the_function_is_compiled() -> None:
    p, meta, tasks = case("regression")
    gradient = ms.MetaGradient(p, ms.MAML(), ms.SGD(0.1), steps=2)
    meta = {name: leaf.requires_grad_() for name, leaf in meta.items()}

    def regularised(meta: Any) -> Tensor:
        decay = sum(leaf.square().sum() for leaf in meta.values())
        return gradient.loss(meta, tasks) + 0.1 * decay  # type: ignore[no-any-return]

    found, expected = (torch.autograd.grad(f(meta), list(meta.values())) for f in (compiled(regularised), regularised))
    assert relative_error(list(found), list(expected)) < 1e-12


def test_dropout_draws_as_it_does_outside() -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1)).double()
    _, _, tasks = case("regression")
    gradient = ms.MetaGradient(ms.few_shot(net, F.mse_loss), ms.MAML(), ms.SGD(0.1), steps=2)
    grads = []
    for function in (compiled(lambda tasks: gradient(net, tasks).grad), lambda tasks: gradient(net, tasks).grad):
        torch.manual_seed(0)
        grads.append(function(tasks))
    assert relative_error(*grads) == 0
